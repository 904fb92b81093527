"""BATCH_SIZE in a running bridge: what the server gets, what is published, and that no message is lost."""

import json
import threading
from pathlib import Path

import pytest

from tests.support import embedded_broker
from tests.support.admin_client import admin_of
from tests.support.doors import DOORS, Host, Hosting, doors
from tests.support.gate import Gate
from tests.support.http_recorder import Answer, Recorder
from tests.support.http_target import Seen
from tests.support.lossless import load
from tests.support.waiting import SECONDS, eventually

ROUTE = """
    DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true" WITH RETRIES 0
            WITH DEFAULT_CONTENT_TYPE "{type}"
        ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "{policy}" {route}
        ADD EVENT E WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY "{body}"
            WITH DESTINATION_TOPIC "out" WITH ERROR_TOPIC "err" {event}
"""


def route(url: str, event: str, *, body: str = "{batch}", kind: str = "application/json", policy: str = "balanced",
          route: str = "") -> str:  # fmt: skip
    return ROUTE.format(url=url, event=event, body=body, type=kind, policy=policy, route=route)


def counts(host: Host) -> dict[str, int]:
    """Return what has become of the messages of the route R."""
    found: dict[str, int] = admin_of(host).get("/api/routes").json["routes"][0]["messages"]
    return found


@pytest.mark.parametrize("hosting", doors(0, 1))
def test_messages_become_one_request_whose_response_is_published_once(target: Recorder, hosting: Hosting) -> None:
    with hosting(route(target.url, "WITH BATCH_SIZE 3"), admin_port=0) as host:
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
    with hosting(route(target.url, "WITH BATCH_SIZE 3"), admin_port=0) as host:
        client, admin = host.client("err"), admin_of(host)
        for number in range(3):
            client.publish("in/a", b"%d" % number)
        runs = [json.loads(payload)["id"] for _, payload in client.messages(3)]
        shown = [admin.get(f"/api/runs/{run}").json for run in runs]
        assert [run["message"]["payload"] for run in shown] == ["0", "1", "2"]
        assert {(run["request"]["body"], run["request"]["messages"]) for run in shown} == {("[0,1,2]", 3)}
        assert "A batch of 3 messages" in admin.get(f"/runs/{runs[1]}").text


@pytest.mark.parametrize("rate", ["", 'WITH RATE_LIMIT "100/s"'])
@pytest.mark.parametrize("processes", [0, 1])
def test_a_stop_sends_the_open_batch_and_does_not_wait_for_its_time(
    target: Recorder, processes: int, rate: str
) -> None:
    event = "WITH BATCH_SIZE 100 WITH BATCH_SECONDS 3600 WITH WHEN '{payload.json} < 3'"
    with embedded_broker.hosting(route(target.url, event, route=rate), processes=processes, admin_port=0) as host:
        client = host.client()
        for number in range(4):
            client.publish("in/a", b"%d" % number)
        eventually(lambda: counts(host)["skipped"] == 1)
        assert target.arrived.empty()
    assert target.request().body == b"[0,1,2]"


def test_lossless_messages_of_a_batch_are_kept_over_a_stop_and_retried_as_one(target: Recorder, tmp_path: Path) -> None:
    text = route(target.url, "WITH BATCH_SIZE 4 WITH BATCH_SECONDS 3600", policy="lossless")
    spool = str(tmp_path / "spool")
    with embedded_broker.hosting(text, spool=spool) as host:
        client = host.client()
        client.publish("in/a", b"0")
    assert target.arrived.empty()
    answers = iter([(503, b""), (200, b"")])
    target.answer = lambda _: next(answers)
    with embedded_broker.hosting(text.replace("3600", "1"), spool=spool, admin_port=0) as host:
        eventually(lambda: counts(host)["succeeded"] == 1)
    first, second = target.take_all()
    assert (first.body, first.headers["idempotency-key"]) == (second.body, second.headers["idempotency-key"])


@pytest.mark.parametrize("policy", ["balanced", "lossless"])
def test_messages_in_a_batch_count_against_overload_bytes_until_it_has_ended(
    target: Recorder, tmp_path: Path, policy: str
) -> None:
    may_answer = threading.Event()

    def answer(_: Seen) -> Answer:
        assert may_answer.wait(SECONDS)
        return 200, b""

    target.answer = answer
    event = "WITH BATCH_SIZE 10 WITH BATCH_SECONDS 3600"
    text = route(target.url, event, policy=policy, route='WITH OVERLOAD_BYTES "1KiB"')
    with embedded_broker.hosting(text, spool=str(tmp_path / "spool"), admin_port=0) as host:
        client = host.client("out", "err")
        large = b'"%s"' % (b"x" * 108)

        def refused(count: int) -> None:
            for _ in range(count):
                client.publish("in/a", large)
            failures = [json.loads(payload)["error"] for _, payload in client.messages(count)]
            assert {failure["code"] for failure in failures} == {"overloaded"}
            assert "OVERLOAD_BYTES of 1 KiB" in failures[0]["message"]

        for _ in range(9):
            client.publish("in/a", large)
        refused(20)
        assert counts(host)["held_bytes"] == 990
        assert target.arrived.empty()  # they wait for one more
        client.publish("in/a", b"1")
        assert len(json.loads(target.request().body)) == 10
        refused(20)
        assert counts(host)["held_bytes"] == 991
        may_answer.set()
        assert client.message()[0] == "out"
        eventually(lambda: counts(host)["held_bytes"] == 0)


@pytest.mark.parametrize("policy", ["balanced", "lossless"])
def test_batches_of_an_ordered_event_keep_the_order_over_a_reload(
    target: Recorder, tmp_path: Path, policy: str
) -> None:
    gate, sent, is_down = Gate(), list[int](), threading.Event()
    is_down.set()

    def answer(seen: Seen) -> Answer:
        if is_down.is_set() and policy == "lossless":
            return 503, b""
        sent.extend(json.loads(seen.body))
        return 200, b""

    target.answer = gate.before(answer)
    event = 'WITH BATCH_SIZE 4 WITH BATCH_SECONDS 2 WITH ORDERED "true"'
    with embedded_broker.hosting(
        route(target.url, event, policy=policy), spool=str(tmp_path / "spool"), admin_port=0
    ) as host:
        client = host.client()
        for number in range(10):
            client.publish("in/a", b"%d" % number)
        gate.entered.get(timeout=SECONDS)
        load(host, route(target.url, event + ' WITH RETRY_ON "500"', policy=policy))
        gate.open.set()
        for number in range(10, 18):
            client.publish("in/a", b"%d" % number)
        eventually(lambda: counts(host)["retried"] > 0 or policy == "balanced", "not tried")
        is_down.clear()
        eventually(lambda: counts(host)["queued"] + counts(host)["in_flight"] == 0, "a message has not ended")
    assert sent == list(range(18))
