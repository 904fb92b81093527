"""BATCH_SIZE in a running bridge: what the server gets, what is published, what a run shows."""

import json

import pytest

from tests.support.admin_client import admin_of
from tests.support.doors import DOORS, Host, Hosting, doors
from tests.support.http_recorder import Recorder
from tests.support.waiting import eventually

ROUTE = """
    DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true" WITH RETRIES 0
            WITH DEFAULT_CONTENT_TYPE "application/json"
        ADD EVENT E WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY "{{batch}}"
            WITH DESTINATION_TOPIC "out" WITH ERROR_TOPIC "err" WITH BATCH_SIZE 3
"""


def counts(host: Host) -> dict[str, int]:
    """Return what has become of the messages of the route R."""
    found: dict[str, int] = admin_of(host).get("/api/routes").json["routes"][0]["messages"]
    return found


@pytest.mark.parametrize("hosting", doors(0, 1))
def test_messages_become_one_request_whose_response_is_published_once(target: Recorder, hosting: Hosting) -> None:
    with hosting(ROUTE.format(url=target.url), admin_port=0) as host:
        client = host.client("out", "err")
        for payload in (b'{ "a": 1.50 }', b"text", b"[]", b"4"):
            client.publish("in/a", payload)
        assert client.message() == ("out", b'[{"a":1.50},"text",[]]')
        assert client.message() == ("out", b"[4]")
        eventually(lambda: counts(host)["succeeded"] == 4, "a message of a batch did not end")
        eventually(lambda: not counts(host)["queued"] + counts(host)["in_flight"], "a result is not acknowledged")
    assert len(target.take_all()) == 2


@pytest.mark.parametrize("hosting", DOORS)
def test_the_run_of_a_message_shows_the_batch_that_it_was_sent_in(target: Recorder, hosting: Hosting) -> None:
    target.answer = lambda _: (404, b"no")
    with hosting(ROUTE.format(url=target.url), admin_port=0) as host:
        client, admin = host.client("err"), admin_of(host)
        for number in range(3):
            client.publish("in/a", b"%d" % number)
        runs = [json.loads(payload)["id"] for _, payload in client.messages(3)]
        shown = [admin.get(f"/api/runs/{run}").json for run in runs]
        assert [run["message"]["payload"] for run in shown] == ["0", "1", "2"]
        assert {(run["request"]["body"], run["request"]["messages"]) for run in shown} == {("[0,1,2]", 3)}
        assert "A batch of 3 messages" in admin.get(f"/runs/{runs[1]}").text
