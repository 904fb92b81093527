"""ON_CHANGE, SCHEMA_FILE and DEDUPE_KEY in a worker."""

import json

import pytest

from tests.support.asking import ask
from tests.support.http_recorder import recording
from tests.support.ports import free_port
from tests.worker.mosquitto import Mosquitto
from tests.worker.workers import Group

pytestmark = pytest.mark.mosquitto
ROUTE = """
DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true" WITH ENABLE_SERVER "true"
        WITH SERVER_PORT '{port}'
    ADD EVENT Changes WITH SOURCE_TOPIC "state/#" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY "{{payload}}"
        WITH DESTINATION_TOPIC "results/change" WITH ON_CHANGE "{{value.json.on}}" WITH SCHEMA_FILE "{schema}"
    ADD EVENT Once WITH SOURCE_TOPIC "orders" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY "{{payload}}"
        WITH DESTINATION_TOPIC "results/once" WITH DEDUPE_KEY "{{value.json.id}}"
    ADD EVENT Hook WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "results/hook"
        WITH DEDUPE_KEY "{{body.json.id}}" WITH SCHEMA_FILE "{schema}"
"""


def test_what_does_not_match_did_not_change_or_was_seen_goes_no_further(group: Group, mosquitto: Mosquitto) -> None:
    schema, port = group.folder / "schema.json", free_port()
    schema.write_text('{"type": "object"}')
    with recording() as target:
        group.routes(ROUTE.format(url=target.url, port=port, schema=schema))
        worker = group.start(0).ready()
        client = mosquitto.client().subscribe("results/#")
        for on in (True, True, False):
            client.publish("state/a", json.dumps({"on": on}).encode())
        client.publish("state/a", b"[]")
        for number in (1, 1, 2):
            client.publish("orders", b'{"id": %d}' % number)
        found = client.collect(5)
        bodies: list[object] = [{"id": 7}, {"id": 7}, [], {"id": 8}]
        assert [ask(port, "/hook", json.dumps(body).encode()).status for body in bodies] == [200, 200, 400, 200]
        found += client.collect(2)
        shown = sorted((topic, b"failure" if b"schema_mismatch" in payload else payload) for topic, payload in found)
        assert shown == [
            ("results/change", b"failure"),
            ("results/change", b'{"on": false}'),
            ("results/change", b'{"on": true}'),
            ("results/hook", b'{"id": 7}'),
            ("results/hook", b'{"id": 8}'),
            ("results/once", b'{"id": 1}'),
            ("results/once", b'{"id": 2}'),
        ]
        assert worker.stop() == 0
