"""BATCH_SIZE in a running bridge: what the server gets, what is published, and that no message is lost."""

import json
import threading
import time
from pathlib import Path

import pytest

from tests.support.admin_client import admin_of
from tests.support.embedded_broker import hosting
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


@pytest.mark.parametrize("processes", [0, 2])
def test_messages_become_one_request_whose_response_is_published_once(target: Recorder, processes: int) -> None:
    with hosting(route(target.url, "WITH BATCH_SIZE 3"), processes=processes) as host:
        client = host.client("out", "err")
        for payload in (b'{ "a": 1.50 }', b"text", b"[]", b"4"):
            client.publish("in/a", payload)
        assert client.message() == ("out", b'[{"a":1.50},"text",[]]')
        assert client.message() == ("out", b"[4]")
        statistics = host.plugin.service.statistics["R"]
        eventually(lambda: statistics.succeeded == 4, "a message of a batch did not end")
        assert statistics.admission.outstanding == 0
    assert len(target.take_all()) == 2


def test_a_batch_is_sent_when_its_time_is_over(target: Recorder) -> None:
    with hosting(route(target.url, "WITH BATCH_SIZE 100 WITH BATCH_SECONDS 1")) as host:
        client = host.client("out")
        for number in range(5):
            client.publish("in/a", b"%d" % number)
        assert client.message() == ("out", b"[0,1,2,3,4]")


def test_items_one_a_line_hold_what_batch_item_makes_of_each_message(target: Recorder) -> None:
    event = "WITH BATCH_SIZE 2 WITH BATCH_ITEM 'room,name={topic.2} value={value.json.v} {timestamp.unix_ms}'"
    with hosting(route(target.url, event, body="{batch.lines}", kind="text/plain")) as host:
        client = host.client("err")
        client.publish("in/a", b'{"v": 21.50}')
        client.publish("in/b", b"nothing")
        client.publish("in/c", b'{"v": "1\\n2"}')
        client.publish("in/d", b'{"v": 3}')
        codes = [json.loads(payload)["error"]["code"] for _, payload in client.messages(2)]
        assert codes == ["placeholder_unresolved", "invalid_value"]
        first, second, rest = target.request().body.split(b"\n")
        assert first.startswith(b"room,name=a value=21.50 ")
        assert second.startswith(b"room,name=d value=3 ")
        assert rest == b""


def test_messages_that_when_skips_are_in_no_batch_and_an_empty_batch_is_never_sent(target: Recorder) -> None:
    event = "WITH BATCH_SIZE 2 WITH WHEN '{payload.json} > 5'"
    with hosting(route(target.url, event)) as host:
        client = host.client("out")
        for number in (1, 2, 6, 3, 4, 7, 5):
            client.publish("in/a", b"%d" % number)
        assert client.message() == ("out", b"[6,7]")
        eventually(lambda: host.plugin.service.statistics["R"].skipped == 5, "a skipped message waits")
    assert len(target.take_all()) == 1


def test_a_refused_batch_fails_each_of_its_messages(target: Recorder) -> None:
    target.answer = lambda _: (404, b"no")
    with hosting(route(target.url, 'WITH BATCH_SIZE 3 WITH BATCH_SPLIT "true" WITH FAILURE_PAYLOAD "true"')) as host:
        client = host.client("err")
        for number in range(3):
            client.publish("in/a", b"%d" % number)
        failures = [json.loads(payload) for _, payload in client.messages(3)]
        assert [failure["payload"] for failure in failures] == ["0", "1", "2"]
        assert {(failure["status"], failure["body"]) for failure in failures} == {(404, "no")}
        assert len({failure["id"] for failure in failures}) == 3
        assert host.plugin.service.statistics["R"].failed == 3
    assert len(target.take_all()) == 1


def test_the_run_of_a_message_shows_the_batch_that_it_was_sent_in(target: Recorder) -> None:
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


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize("ordered", ["", 'WITH ORDERED "true"'])
def test_the_bad_item_of_a_batch_is_found_and_all_others_are_sent(target: Recorder, status: int, ordered: str) -> None:
    sent: list[int] = []

    def answer(seen: Seen) -> Answer:
        items = json.loads(seen.body)
        if 333 in items:
            return status, b""
        sent.extend(items)
        return 200, b""

    target.answer = answer
    event = f'WITH BATCH_SIZE 500 WITH BATCH_SECONDS 60 WITH BATCH_SPLIT "true" {ordered}'
    with hosting(route(target.url, event)) as host:
        client = host.client("err")
        for number in range(500):
            client.publish("in/a", b"%d" % number, qos=0)
        _, failure = client.message()
        assert json.loads(failure)["status"] == status
        statistics = host.plugin.service.statistics["R"]
        eventually(lambda: statistics.succeeded == 499, "a good item was not sent")
        assert statistics.failed == 1
    wanted = [number for number in range(500) if number != 333]
    assert (sent if ordered else sorted(sent)) == wanted
    assert len(target.take_all()) < 25


def test_batches_of_an_ordered_event_keep_the_order_over_retries(target: Recorder) -> None:
    answers = iter([(503, b""), (200, b"")])
    got: list[int] = []

    def answer(seen: Seen) -> Answer:
        status, body = next(answers, (200, b""))
        got.extend(json.loads(seen.body) if status == 200 else ())
        return status, body

    target.answer = answer
    text = route(target.url, "WITH BATCH_SIZE 10 WITH ORDERED true").replace("RETRIES 0", "RETRIES 3")
    with hosting(text) as host:
        client = host.client()
        for number in range(60):
            client.publish(f"in/{number % 3}", b"%d" % number)
        eventually(lambda: len(got) == 60, "a batch is missing")
    assert got == list(range(60))


def test_a_batch_is_one_request_for_rate_limit_and_signature(target: Recorder) -> None:
    event = "WITH BATCH_SIZE 5 WITH SIGNATURE_SECRET 's'"
    with hosting(route(target.url, event, route='WITH RATE_LIMIT "2/s"')) as host:
        client = host.client("out")
        began = time.monotonic()
        for number in range(10):
            client.publish("in/a", b"%d" % number)
        client.messages(2)
        assert time.monotonic() - began >= 0.5
    assert all("x-hub-signature-256" in seen.headers for seen in target.take_all())


def test_a_batch_holds_no_more_than_max_body_bytes(target: Recorder) -> None:
    with hosting(route(target.url, "WITH BATCH_SIZE 1000 WITH BATCH_SECONDS 1"), max_body_bytes=4096) as host:
        client = host.client("out", "err")
        for _ in range(50):
            client.publish("in/a", b'"%s"' % (b"x" * 500))
        while host.plugin.service.statistics["R"].succeeded < 50:
            assert client.message()[0] == "out"
    sizes = [len(seen.body) for seen in target.take_all()]
    assert max(sizes) <= 4096
    assert len(sizes) < 10


@pytest.mark.parametrize("rate", ["", 'WITH RATE_LIMIT "100/s"'])
def test_a_stop_sends_the_open_batch_and_does_not_wait_for_its_time(target: Recorder, rate: str) -> None:
    event = "WITH BATCH_SIZE 100 WITH BATCH_SECONDS 3600 WITH WHEN '{payload.json} < 3'"
    with hosting(route(target.url, event, route=rate)) as host:
        client = host.client()
        for number in range(4):
            client.publish("in/a", b"%d" % number)
        eventually(lambda: host.plugin.service.statistics["R"].skipped == 1)
        assert target.arrived.empty()
    assert target.request().body == b"[0,1,2]"


def test_lossless_messages_of_a_batch_are_kept_over_a_stop_and_retried_as_one(target: Recorder, tmp_path: Path) -> None:
    text = route(target.url, "WITH BATCH_SIZE 4 WITH BATCH_SECONDS 3600", policy="lossless")
    spool = str(tmp_path / "spool")
    with hosting(text, spool=spool) as host:
        client = host.client()
        client.publish("in/a", b"0")
    assert target.arrived.empty()
    answers = iter([(503, b""), (200, b"")])
    target.answer = lambda _: next(answers)
    with hosting(text.replace("3600", "1"), spool=spool) as host:
        eventually(lambda: host.plugin.service.statistics["R"].succeeded == 1)
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
    with hosting(text, spool=str(tmp_path / "spool")) as host:
        client = host.client("out", "err")
        admission = host.plugin.service.statistics["R"].admission
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
        assert admission.bytes == 990
        assert target.arrived.empty()  # they wait for one more
        client.publish("in/a", b"1")
        assert len(json.loads(target.request().body)) == 10
        refused(20)
        assert admission.bytes == 991
        may_answer.set()
        assert client.message()[0] == "out"
        eventually(lambda: admission.bytes == 0)


def test_calls_of_events_without_batches_go_on_beside_them(target: Recorder) -> None:
    text = (
        route(target.url, "WITH BATCH_SIZE 100 WITH BATCH_SECONDS 3600")
        + """
        ADD EVENT Single WITH SOURCE_TOPIC "single" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY "{payload}"
            WITH DESTINATION_TOPIC "out" """
    )
    with hosting(text) as host:
        client = host.client("out")
        client.publish("in/a", b"1")
        client.publish("single", b"2")
        assert client.message() == ("out", b"2")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ('{"a": {batch}, "b": {batch}}', "application/json"),
        ("data={batch}", "application/x-www-form-urlencoded"),
        ('{"lines": "{batch.lines}"}', "application/json"),
    ],
    ids=["twice", "form", "string"],
)
def test_a_batch_whose_body_is_larger_than_its_items_is_sent_in_parts(target: Recorder, body: str, kind: str) -> None:
    text = route(target.url, "WITH BATCH_SIZE 10", body=body.replace('"', '\\"'), kind=kind)
    with hosting(text, max_body_bytes=2000) as host:
        client = host.client("err")
        for number in range(10):
            client.publish("in/a", b'{"n": %d, "text": "%s"}' % (number, b"<>" * 60))
        statistics = host.plugin.service.statistics["R"]
        eventually(lambda: statistics.succeeded + statistics.failed == 10, "a message has not ended")
        assert (statistics.succeeded, statistics.failed) == (10, 0)


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
    with hosting(route(target.url, event, policy=policy), spool=str(tmp_path / "spool")) as host:
        client, statistics = host.client(), host.plugin.service.statistics["R"]
        for number in range(10):
            client.publish("in/a", b"%d" % number)
        gate.entered.get(timeout=SECONDS)
        load(host, route(target.url, event + ' WITH RETRY_ON "500"', policy=policy))
        gate.open.set()
        for number in range(10, 18):
            client.publish("in/a", b"%d" % number)
        eventually(lambda: statistics.retried > 0 or policy == "balanced", "not tried")
        is_down.clear()
        eventually(lambda: statistics.admission.outstanding == 0, "a message has not ended")
    assert sent == list(range(18))
