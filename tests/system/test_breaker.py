"""BREAKER in a running bridge: what a dead target sees of its messages, what becomes of them, what is shown."""

import threading
from pathlib import Path

import pytest

from amqtt_rest_bridge.engine.stages import breaker
from tests.support.admin_client import admin_of
from tests.support.embedded_broker import Host, hosting
from tests.support.http_recorder import Recorder
from tests.support.waiting import eventually

ROUTE = """
    DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true" WITH RETRIES 3
        ADD ROUTE_CONFIG WITH BREAKER "2 per 30s" WITH OVERLOAD_POLICY "lossless"
        ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY "{{payload}}"
            WITH DESTINATION_TOPIC "out"
"""


def status(host: Host) -> dict[str, object]:
    return host.program.status("R")


def test_lossless_messages_wait_for_a_dead_target_and_are_all_sent(
    target: Recorder, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "PROBE_SECONDS", 0.2)
    caplog.set_level("INFO", "amqtt_rest_bridge")
    is_down = threading.Event()
    is_down.set()
    target.answer = lambda _: (503, b"") if is_down.is_set() else (200, b"")
    with hosting(ROUTE.format(url=target.url), workers=4, spool=str(tmp_path / "s"), admin_port=0) as host:
        client, admin = host.client("out"), admin_of(host)
        for number in range(100):
            client.publish("in", b"%d" % number)
        eventually(lambda: status(host)["breaker"] == "open", "the breaker stays closed")
        before = target.arrived.qsize()
        assert status(host)["health"] == "Red"
        assert b'rest_bridge_breaker_open{route="R"} 1' in admin.get("/metrics").body
        assert (
            b"the breaker is open: the target failed 2 times within 30 s, the last time with 503" in admin.get("/").body
        )
        eventually(lambda: target.arrived.qsize() >= before + 2, "nothing probes the target")
        assert host.program.status("R")["messages"]["in_flight"] <= 1
        eventually(
            lambda: ", retry by the breaker" in caplog.text, "its tries are logged as if they had times of their own"
        )
        is_down.clear()
        client.messages(100)
        assert status(host)["breaker"] == "closed"
        assert b'rest_bridge_breaker_open{route="R"} 0' in admin.get("/metrics").body
    assert {int(one.body) for one in target.take_all()} == set(range(100))
