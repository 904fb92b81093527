"""What a message waited and what the server took are two figures: in the log, status, metrics, pages and calls."""

import json
import logging
import re
import threading
from collections.abc import Iterator
from time import monotonic

import pytest

from amqtt_rest_bridge.cli.trace import line
from tests.support.admin_client import admin_of, client_route, runs
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import Answer, Recorder, recording
from tests.support.http_target import Seen
from tests.support.waiting import eventually

SERVER = 200  # milliseconds, for each answer
MESSAGES = 3
ANSWERED = re.compile(r"answered 200 in (\d+) ms, waited (\d+) ms")
LABELS = {"route": "Orders", "event": "Send"}


@pytest.fixture
def target() -> Iterator[Recorder]:
    def slowly(_: Seen) -> Answer:
        threading.Event().wait(SERVER / 1000)
        return 200, b"well"

    with recording() as recorder:
        recorder.answer = slowly
        yield recorder


def cell(page: str, name: str) -> float:
    """Return a number of the page of a route, or of the only route of the status page."""
    (text,) = re.findall(rf'data-cell="{name}">([0-9.]+)<', page)
    return float(text)


def duration(milliseconds: float) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def test_each_place_has_both_times(target: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    """With a request a second, the last of three messages waits for two; a busy machine publishes late."""
    caplog.set_level(logging.INFO, logger="amqtt_rest_bridge")
    limited = 'ADD ROUTE_CONFIG WITH RATE_LIMIT "1/s"'
    text = client_route(target.url, more=limited, event='WITH RESPONSE_FORMAT "envelope"')
    with hosting(text, admin_port=0) as host:
        admin, client = admin_of(host), host.client("done/#")
        with admin.live("?route=Orders") as events:
            began = monotonic()
            for number in range(MESSAGES):
                client.publish(f"orders/{number}", b"{}")
            # The last message has its turn two seconds behind the first one; half a second is for a busy machine.
            least = 1500 - 1000 * (monotonic() - began)
            took = [json.loads(payload)["elapsed_ms"] for _, payload in sorted(client.messages(MESSAGES))]
            whole = 1000 * (monotonic() - began)
            live = {record["topic"]: record for record in (events.record() for _ in range(MESSAGES))}

        def has_waited(waited: float) -> bool:
            """Return whether a call waited for its turn, and not for the server's answer as well."""
            return least <= waited <= whole - SERVER

        def both(waited: float, longest: float) -> bool:
            """Return whether these are the longest times of all calls."""
            return has_waited(waited) and longest == pytest.approx(max(took), abs=1)

        records = {record["topic"]: record for record in admin.calls("Orders")}
        last = records["orders/2"]
        assert has_waited(last["waited_ms"])
        assert SERVER <= last["ms"] <= whole - last["waited_ms"]
        assert took == [records[f"orders/{number}"]["ms"] for number in range(MESSAGES)]
        assert f"{last['ms']} ms  waited {last['waited_ms']} ms" in line(live["orders/2"])

        status = admin.status("Orders")
        assert both(status["wait_ms"]["p99"], status["latency_ms"]["p99"])
        assert status["wait_ms"]["p50"] >= least - 1000

        for name, member in (("call", "ms"), ("wait", "waited_ms")):
            total = sum(record[member] for record in records.values()) / 1000
            assert admin.value(f"rest_bridge_{name}_seconds_sum", **LABELS) == pytest.approx(total, rel=0.1)
            assert admin.value(f"rest_bridge_{name}_seconds_count", **LABELS) == MESSAGES

        for page in (admin.text("/"), admin.text("/routes/Orders")):
            assert both(cell(page, "wait_p99"), cell(page, "p99"))
        assert f"{duration(last['ms'])}</span>" in page
        assert f"waited {duration(last['waited_ms'])}" in page

        def is_logged() -> bool:  # at once, or when the second is over in which another call was
            times = [(float(took), float(waited)) for took, waited in ANSWERED.findall(caplog.text)]
            return any(took == pytest.approx(last["ms"], abs=1) and has_waited(waited) for took, waited in times)

        eventually(is_logged, "the log does not have both times of the last call")


def test_pauses_between_tries_are_waiting_and_the_tries_are_the_servers(
    target: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed call: half a second and a second lie between its tries."""

    def refuse(_: Seen) -> Answer:
        threading.Event().wait(SERVER / 1000)
        return 503, b""

    target.answer = refuse
    with hosting(client_route(target.url, config="WITH RETRIES 2"), admin_port=0) as host:
        client = host.client("done/#")
        began = monotonic()
        client.publish("orders/1", b"{}")
        client.message()
        whole = 1000 * (monotonic() - began)
        (call,) = admin_of(host).calls("Orders")
    assert (call["tries"], call["status"]) == (3, 503)
    assert call["waited_ms"] >= 1500
    assert 3 * SERVER <= call["ms"] <= whole - call["waited_ms"]
    said = rf"http_status on orders/1 after 3 tries in (\d+\.\d{{3}}) s, waited (\d+\.\d{{3}}) s, run {call['id']}: "
    ((took, waited),) = re.findall(said, caplog.text)
    assert 1000 * float(took) == pytest.approx(call["ms"], abs=1)
    assert call["waited_ms"] - 1 <= 1000 * float(waited) <= whole - call["ms"] + 1


def test_what_sends_nothing_has_no_try_and_does_not_make_the_server_look_fast(
    target: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    with hosting(client_route(target.url, event="WITH HEADERS ADD X '{value.json.x}'"), admin_port=0) as host:
        client, admin = host.client("done/#"), admin_of(host)
        client.publish("orders/1", b"{}")
        assert json.loads(client.message()[1])["error"]["code"] == "placeholder_unresolved"
        admin.await_value(1, "rest_bridge_wait_seconds_count", **LABELS)
        assert admin.value("rest_bridge_call_seconds_count", **LABELS) == 0
        assert [call["tries"] for call in admin.calls("Orders")] == [0]
        assert [run["tries"] for run in runs(admin)] == [[]]
    assert "placeholder_unresolved on orders/1 after 0 tries in " in caplog.text
