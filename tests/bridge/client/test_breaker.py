"""BREAKER in a running bridge: what a dead target sees of its messages, what becomes of them, what is shown."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from amqtt_rest_bridge.bridge import timers
from amqtt_rest_bridge.bridge.timers import Breaker
from amqtt_rest_bridge.catalogue import CONNECTION_FAILED
from amqtt_rest_bridge.engine.stages import breaker
from amqtt_rest_bridge.model import BreakerRule
from tests.bridge.client.test_pace import FakeTimers
from tests.support.admin_client import admin_of
from tests.support.embedded_broker import Host, hosting
from tests.support.gate import Gate
from tests.support.http_recorder import Recorder, recording
from tests.support.lossless import load
from tests.support.waiting import SECONDS, eventually

RULE = BreakerRule(1, 30)
TARGET = "http://t"
FAILURE = CONNECTION_FAILED.error("refused")
ROUTE = """
    DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true" WITH RETRIES {retries}
        ADD ROUTE_CONFIG WITH BREAKER "{rule}" WITH OVERLOAD_POLICY "{policy}"
        ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY "{{payload}}"
            WITH DESTINATION_TOPIC "out"
"""


class Calls:
    """A breaker whose calls are noted when they start."""

    def __init__(self) -> None:
        self.timers = FakeTimers()
        self.changes: list[str | None] = []
        self.breaker = Breaker(self.timers, self.changes.append, lambda: self.timers.now)
        self.breaker.change(TARGET, RULE)
        self.started: list[tuple[float, int]] = []

    def wait(self, call: int, then: Callable[[], bool] = lambda: True) -> None:
        def start() -> bool:
            self.started.append((self.timers.now, call))
            return then()

        assert self.breaker.hold(start, TARGET)


def test_what_waits_probes_one_after_the_other_and_goes_on_together_once_one_succeeds() -> None:
    calls = Calls()
    calls.breaker.replied(0, FAILURE, TARGET)
    for call in (1, 2, 3, 4):
        calls.wait(call)
    calls.timers.run_until(5.0)
    assert calls.breaker.passes(1, TARGET)
    calls.breaker.replied(1, FAILURE, TARGET)
    calls.timers.run_until(10.0)
    assert calls.breaker.passes(2, TARGET)
    calls.timers.run_until(60.0)
    calls.breaker.replied(2, CONNECTION_FAILED.error("refused"), TARGET)
    calls.timers.run_until(60.0)
    assert calls.breaker.passes(3, TARGET)
    assert calls.started == [(5.0, 1), (10.0, 2), (60.0, 3)]
    calls.breaker.change("http://other", RULE)
    calls.breaker.release()
    assert calls.started[3:] == [(60.0, 4)]
    assert calls.changes == [
        "the breaker is open: the target failed once within 30 s, the last time with connection_failed",
        None,
    ]


def test_a_call_that_was_withdrawn_does_not_probe() -> None:
    calls = Calls()
    calls.breaker.replied(0, FAILURE, TARGET)
    calls.wait(1, lambda: False)
    calls.wait(2, lambda: False)
    calls.wait(3)
    calls.timers.run_until(5.0)
    assert calls.started == [(5.0, 1), (5.0, 2), (5.0, 3)]


def test_the_next_one_probes_where_a_call_sends_nothing() -> None:
    calls = Calls()
    calls.breaker.replied(0, FAILURE, TARGET)
    calls.wait(1)
    calls.wait(2)
    calls.timers.run_until(10.0)
    assert calls.started == [(5.0, 1), (10.0, 2)]


def test_a_reload_with_the_same_target_and_rule_keeps_the_state() -> None:
    calls = Calls()
    calls.breaker.replied(0, FAILURE, TARGET)
    calls.breaker.change(TARGET, RULE)
    assert not calls.breaker.passes(1, TARGET)
    calls.breaker.change(TARGET, None)
    assert calls.breaker.passes(1, TARGET)
    assert not calls.breaker.hold(lambda: True, TARGET)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probe five times a second."""
    monkeypatch.setattr(breaker, "PROBE_SECONDS", 0.2)
    monkeypatch.setattr(timers, "PROBE_SECONDS", 0.2)


def status(host: Host) -> dict[str, object]:
    return host.plugin.service.statistics["R"].status(0.0)


@pytest.mark.usefixtures("often")
def test_lossless_messages_wait_for_a_dead_target_and_are_all_sent(
    target: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "amqtt_rest_bridge")
    is_down = threading.Event()
    is_down.set()
    target.answer = lambda _: (503, b"") if is_down.is_set() else (200, b"")
    text = ROUTE.format(url=target.url, retries=3, rule="2 per 30s", policy="lossless")
    with hosting(text, workers=4, spool=str(tmp_path / "s"), admin_port=0) as host:
        client, admin = host.client("out"), admin_of(host)
        for number in range(100):
            client.publish("in", b"%d" % number)
        eventually(lambda: status(host)["breaker"] == "open", "the breaker stays closed")
        before = target.arrived.qsize()
        assert host.plugin.service.statistics["R"].health == "Red"
        assert b'rest_bridge_breaker_open{route="R"} 1' in admin.get("/metrics").body
        assert (
            b"the breaker is open: the target failed 2 times within 30 s, the last time with 503" in admin.get("/").body
        )
        eventually(lambda: target.arrived.qsize() >= before + 2, "nothing probes the target")
        assert host.plugin.service.statistics["R"].admission.in_flight <= 1
        eventually(
            lambda: ", retry by the breaker" in caplog.text, "its tries are logged as if they had times of their own"
        )
        is_down.clear()
        client.messages(100)
        assert status(host)["breaker"] == "closed"
        assert b'rest_bridge_breaker_open{route="R"} 0' in admin.get("/metrics").body
    assert {int(one.body) for one in target.take_all()} == set(range(100))


@pytest.mark.parametrize("processes", [0, 2])
def test_messages_that_may_be_lost_fail_at_once_and_one_process_counts_the_failures(
    target: Recorder, processes: int
) -> None:
    target.answer = lambda _: (504, b"")
    text = ROUTE.format(url=target.url, retries=0, rule="3 per 1h", policy="balanced")
    with hosting(text, processes=processes, workers=1) as host:
        client = host.client("out")
        for _ in range(40):
            client.publish("in", b"1")
        codes = [json.loads(payload)["error"]["code"] for _, payload in client.messages(40)]
    assert codes[:3] == ["http_status"] * 3
    assert codes.count("http_status") == target.arrived.qsize()
    assert codes.count("http_status") < 2 * 3


def test_what_still_waits_for_the_target_before_a_reload_opens_no_breaker(target: Recorder) -> None:
    gate = Gate()
    target.answer = gate.before(lambda _: (503, b""))
    text = ROUTE.format(url=target.url, retries=0, rule="1 per 30s", policy="balanced")
    with recording() as other, hosting(text) as host:
        client = host.client("out")
        client.publish("in", b"1")
        gate.entered.get(timeout=SECONDS)
        load(host, text.replace(target.url, other.url))
        gate.open.set()
        assert json.loads(client.message()[1])["status"] == 503
        client.publish("in", b"2")
        assert client.message() == ("out", b"2")
