"""`GET /openapi.json`: the description of a port is valid, holds no credentials, and is what the port keeps."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from amqtt_rest_bridge.engine.server.openapi import describe
from tests.support.answering import Answering
from tests.support.embedded_broker import hosting
from tests.support.route_text import load_text
from tests.support.server_mode import event, route, topic

ROUTES = """DEFINE ROUTE Home WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0'
    ADD EVENT Set WITH METHOD "PUT" WITH ENDPOINT "/rooms/{room}" WITH DESTINATION_TOPIC "home/{path.room}/set"
        WITH PAYLOAD '{"level": {body.json.level}, "by": "{query.by|none}"}'
    ADD EVENT Room WITH METHOD "GET" WITH ENDPOINT "/rooms/{room}" WITH SOURCE_TOPIC "home/{path.room}/t"
    ADD EVENT All WITH METHOD "GET" WITH ENDPOINT "/rooms" WITH SOURCE_TOPIC "home/+/t"
    ADD EVENT Hook WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "hook"
        WITH WHEN '{header.x-skip} != "1"' WITH RESPONSE_STATUS '202' WITH RESPONSE '{"id": "{request_id}"}'
DEFINE ROUTE Guarded WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0' WITH SERVER_USERNAME "u"
        WITH SERVER_PASSWORD "s3cret-password" WITH SERVER_TOKEN "s3cret-token" WITH SERVER_TOKEN_HEADER "X-API-Key"
    ADD EVENT Delete WITH METHOD "DELETE" WITH ENDPOINT "/rooms" WITH DESTINATION_TOPIC "home/gone"
        WITH SIGNATURE_SECRET "s3cret-key" WITH RESPONSE_STATUS '204'
"""


def description(text: str) -> dict[str, Any]:
    loaded = load_text(text)
    assert not loaded.has_errors, loaded.faults
    document: dict[str, Any] = json.loads(describe(loaded.routes))
    assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []
    return document


def test_the_description_is_valid_and_names_what_each_endpoint_takes_and_answers() -> None:
    paths = description(ROUTES)["paths"]
    assert {path: sorted(operations) for path, operations in paths.items()} == {
        **{"/rooms/{room}": ["get", "put"], "/rooms": ["delete", "get"], "/hook": ["post"]}
    }
    put = paths["/rooms/{room}"]["put"]
    assert [(one["name"], one["in"], one["required"]) for one in put["parameters"]] == [
        *(("room", "path", True), ("by", "query", False))
    ]
    assert put["requestBody"]["content"]["application/json"]["schema"]["required"] == ["level"]
    assert list(paths["/rooms"]["get"]["responses"]["200"]["content"]) == ["application/json"]
    assert sorted(paths["/hook"]["post"]["responses"]) == ["200", "202", "default"]
    assert "content" not in paths["/rooms"]["delete"]["responses"]["204"]


def test_each_operation_has_an_id_of_its_own_also_where_names_hold_points() -> None:
    events = [event(endpoint=f"/{number}", name=name) for number, name in enumerate(("A", "X.A"))]
    document = json.loads(describe([route(events[0], name="H.X"), route(events[1], name="H")]))
    ids = [operations["post"]["operationId"] for operations in document["paths"].values()]
    assert len(set(ids)) == 2


def test_a_stream_is_one_of_server_sent_events() -> None:
    text = ROUTES.replace('WITH SOURCE_TOPIC "home/+/t"', 'WITH SOURCE_TOPIC "home/+/t" WITH STREAM "true"')
    answers = description(text)["paths"]["/rooms"]["get"]["responses"]
    assert list(answers["200"]["content"]) == ["text/event-stream"]


def test_what_callers_send_is_named_and_never_shown() -> None:
    document = description(ROUTES)
    operation = document["paths"]["/rooms"]["delete"]
    assert operation["security"] == [{"password": []}, {"token": []}, {"token-X-API-Key": []}]
    assert sorted(document["components"]["securitySchemes"]) == ["password", "token", "token-X-API-Key"]
    assert "security" not in document["paths"]["/hook"]["post"]
    assert "s3cret" not in json.dumps(document)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"$defs": {"level": {"type": "integer"}}, "properties": {"level": {"$ref": "#/$defs/level"}}}', None),
        (r'{"title": "caf\u00e9", "const": "\ud800"}', {"title": "caf\u00e9", "const": "\ud800"}),
    ],
    ids=["with a reference", "with half a surrogate pair"],
)
def test_the_schema_of_an_event_is_that_of_its_body(tmp_path: Path, text: str, shown: dict[str, Any] | None) -> None:
    (tmp_path / "body.json").write_text(text)
    setting = f'WITH ENDPOINT "/hook" WITH SCHEMA_FILE "{tmp_path}/body.json"'
    described = description(ROUTES.replace('WITH ENDPOINT "/hook"', setting))
    body = described["paths"]["/hook"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$id": "urn:rest-bridge:Home:Hook"} | (shown or json.loads(text))
    assert str(tmp_path) not in json.dumps(described)


def test_it_is_served_where_the_setting_is_on_and_to_any_caller() -> None:
    made = Answering(*load_text(ROUTES).routes, openapi=True)
    answer = made.ask("GET", "/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json["openapi"] == "3.1.0"
    assert made.ask("HEAD", "/openapi.json").status_code == 200
    assert made.ask("POST", "/openapi.json").status_code == 404
    assert Answering(*load_text(ROUTES).routes).ask("GET", "/openapi.json").status_code == 404


def test_an_endpoint_with_its_path_and_method_wins_and_one_with_any_segment_does_not() -> None:
    made = Answering(route(event("GET", "/openapi.json", None, source="own")), openapi=True)
    made.broker.changed("own", b"mine")
    assert made.ask("GET", "/openapi.json").content == b"mine"
    read = event("GET", "/{x}", None, source="own/{path.x}", read_topic=topic("own/{path.x}"))
    made = Answering(route(read, event("POST", "/openapi.json", name="Post"), server_token=("t0ken",)), openapi=True)
    assert made.ask("GET", "/openapi.json").json["openapi"] == "3.1.0"
    assert [made.ask(*asked).status_code for asked in (("POST", "/openapi.json"), ("GET", "/other"))] == [401, 401]


def schemathesis(url: str, folder: Path, examples: int) -> "subprocess.CompletedProcess[str]":
    """Run it in a process of its own, so that its pytest plugin plays no part."""
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", url, "--checks", "all",
        "--max-examples", str(examples), "--no-color", "--auth", "u:s3cret-password",
    ]  # fmt: skip
    return subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, timeout=500)


@pytest.mark.long  # 10 s with the fewest examples
@pytest.mark.parametrize("examples", [3, 300])
def test_schemathesis_finds_nothing_on_a_port_with_five_endpoints(tmp_path: Path, examples: int) -> None:
    text = ROUTES.replace('WITH SIGNATURE_SECRET "s3cret-key"', "")  # which schemathesis cannot make
    text = text.replace('WITH SERVER_TOKEN "s3cret-token" WITH SERVER_TOKEN_HEADER "X-API-Key"', "")  # or so
    with hosting(text, openapi=True) as host:
        host.client().publish("home/hall/t", b"21.5")
        ran = schemathesis(f"http://127.0.0.1:{host.http_port}/openapi.json", tmp_path, examples)
    assert ran.returncode == 0, ran.stdout
    assert "Failures:" not in ran.stdout
