"""What a message waited and what the server took are two figures: in the log, status, metrics, pages and calls."""

import json
import logging
import re
import threading
from collections.abc import Iterator

import pytest

from amqtt_rest_bridge.cli.trace import line
from tests.support.admin_client import admin_of, client_route, runs
from tests.support.embedded_broker import Host, hosting
from tests.support.http_recorder import Answer, Recorder, recording
from tests.support.http_target import Seen

SERVER = 0.2  # seconds, for each answer
MESSAGES = 3
LIMITED = """ADD ROUTE_CONFIG WITH RATE_LIMIT "1/s" """
ANSWERED = re.compile(r"answered 200 in (\d+) ms, waited (\d+) ms")
LABELS = {"route": "Orders", "event": "Send"}


@pytest.fixture
def target() -> Iterator[Recorder]:
    def slowly(_: Seen) -> Answer:
        threading.Event().wait(SERVER)
        return 200, b"well"

    with recording() as recorder:
        recorder.answer = slowly
        yield recorder


@pytest.fixture
def host(target: Recorder, caplog: pytest.LogCaptureFixture) -> Iterator[Host]:
    """Run a route that sends one request a second; the last of three messages waits for two."""
    caplog.set_level(logging.INFO, logger="amqtt_rest_bridge")
    text = client_route(target.url, more=LIMITED, event='WITH RESPONSE_FORMAT "envelope"')
    with hosting(text, admin_port=0) as host:
        yield host


def ended(host: Host) -> list[float]:
    """Publish the messages, wait for their results, and return the times in these, in milliseconds."""
    client = host.client("done/#")
    for number in range(MESSAGES):
        client.publish(f"orders/{number}", b"{}")
    return [json.loads(payload)["elapsed_ms"] for _, payload in client.messages(MESSAGES)]


def waited_longer(waited: float, took: float) -> bool:
    """Return whether a call of the last message has both times, in milliseconds, and not each in the other."""
    return waited >= 1500 and 1000 * SERVER <= took < waited


def cell(page: str, name: str) -> float:
    """Return a number of the page of a route, or of the only route of the status page."""
    (text,) = re.findall(rf'data-cell="{name}">([0-9.]+)<', page)
    return float(text)


def duration(milliseconds: float) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def test_each_place_has_both_times(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    admin = admin_of(host)
    with admin.live("?route=Orders") as events:
        elapsed = ended(host)
        live = [events.record() for _ in range(MESSAGES)]
    records = {record["topic"]: record for record in admin.calls("Orders")}
    last = records["orders/2"]
    assert waited_longer(last["waited_ms"], last["ms"])
    assert elapsed == [records[f"orders/{number}"]["ms"] for number in range(MESSAGES)]
    assert f"{last['ms']} ms  waited {last['waited_ms']} ms" in line(live[-1])

    (status,) = admin.get("/api/routes").json["routes"]
    assert waited_longer(status["wait_ms"]["p99"], status["latency_ms"]["p99"])
    assert status["wait_ms"]["p50"] >= 500

    for name, member in (("call", "ms"), ("wait", "waited_ms")):
        total = sum(record[member] for record in records.values()) / 1000
        assert admin.value(f"rest_bridge_{name}_seconds_sum", **LABELS) == pytest.approx(total, rel=0.1)
        assert admin.value(f"rest_bridge_{name}_seconds_count", **LABELS) == MESSAGES

    for page in (admin.get("/").text, admin.get("/routes/Orders").text):
        assert waited_longer(cell(page, "wait_p99"), cell(page, "p99"))
    assert f"{duration(last['ms'])}</span>" in page
    assert f"waited {duration(last['waited_ms'])}" in page

    lines = [(float(took), float(waited)) for took, waited in ANSWERED.findall(caplog.text)]
    assert any(took >= 1000 * SERVER and waited >= 500 for took, waited in lines)


def test_pauses_between_tries_are_waiting_and_the_tries_are_the_servers(
    target: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed call: half a second and a second lie between its tries."""

    def refuse(_: Seen) -> Answer:
        threading.Event().wait(SERVER)
        return 503, b""

    target.answer = refuse
    with hosting(client_route(target.url, config="WITH RETRIES 2"), admin_port=0) as host:
        client = host.client("done/#")
        client.publish("orders/1", b"{}")
        client.message()
        (call,) = admin_of(host).calls("Orders")
    assert (call["tries"], call["status"]) == (3, 503)
    assert waited_longer(call["waited_ms"], call["ms"])
    assert call["ms"] >= 3 * 1000 * SERVER
    said = rf"http_status on orders/1 after 3 tries in (\d+\.\d{{3}}) s, waited (\d+\.\d{{3}}) s, run {call['id']}: "
    (seconds,) = re.findall(said, caplog.text)
    assert [1000 * float(one) for one in seconds] == pytest.approx([call["ms"], call["waited_ms"]], abs=1)


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
