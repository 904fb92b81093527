"""Lossless routes while something else goes wrong: reloads under load, an ACL that fails, a row that cannot be read."""

import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
from amqtt.contexts import Action
from amqtt.plugins.base import BaseTopicPlugin

from amqtt_rest_bridge.lot.model import Message
from amqtt_rest_bridge.store import Spool
from tests.benchmarks.mqtt_wire import Wire
from tests.broker.publisher import Publisher
from tests.support.embedded_broker import hosting
from tests.support.gate import Gate
from tests.support.http_recorder import Recorder
from tests.support.lossless import Keys, load, on_disk, route
from tests.support.waiting import SECONDS, eventually

MOST_UNDERWAY = 200


def leave(spool: Path, *rows: tuple[str, bytes], client: tuple[str, None] | None = None) -> None:
    """Leave rows of event and payload on disk, as an earlier run does."""
    with contextlib.closing(Spool(spool)) as left:
        for event, payload in rows:
            left.keep("L", event, Message("in/x", payload, 1000.0), 0, client)


@pytest.mark.parametrize("toggles", [pytest.param(2, id="2"), pytest.param(60, marks=pytest.mark.long)])
def test_a_route_that_is_made_lossless_and_balanced_under_load_sends_each_message_once(
    spool: Path, target: Recorder, toggles: int
) -> None:
    keys, publisher, lossless = Keys(target), Publisher(50), route(target.port, 1_000_000)
    balanced = lossless.replace('"lossless"', '"balanced"')
    with hosting(lossless, spool=str(spool)) as host:
        over = threading.Event()

        def publish() -> None:
            with contextlib.closing(Wire(host.mqtt_port, "sender")) as wire:
                while not over.is_set():
                    # As fast as calls end: what waits at the end would else take longer with each of them.
                    eventually(lambda: over.is_set() or len(publisher.acknowledged) - len(keys.of) < MOST_UNDERWAY)
                    publisher.publish_some(wire)

        publishing = threading.Thread(target=publish)
        publishing.start()
        for number in range(toggles):
            load(host, (balanced, lossless)[number % 2])
        over.set()
        publishing.join()
        eventually(lambda: keys.of.keys() == publisher.payloads, "a message is missing")
        eventually(lambda: on_disk(spool) == 0, "an ended call stays on disk")
    assert len(keys.bodies) == len(keys.of)


class FailingOnce(BaseTopicPlugin):
    """An ACL that fails when it is asked for the first time, and then lets everything pass."""

    failed: ClassVar[bool] = False

    async def topic_filtering(self, *, action: Action | None = None, **_: Any) -> bool:
        if action is Action.PUBLISH and not FailingOnce.failed:
            FailingOnce.failed = True
            raise ConnectionError("the user database is away")
        return True


def test_a_kill_before_the_acl_decided_and_an_acl_that_fails_then_cost_no_message(
    spool: Path, target: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FailingOnce, "failed", False)
    leave(spool, ("E", b"kept"), client=("sender", None))
    with hosting(route(target.port), {f"{__name__}.FailingOnce": {}}, spool=str(spool)) as host:
        assert target.request().body == b"kept"
        assert FailingOnce.failed
        eventually(lambda: on_disk(spool) == 0, "an ended call stays on disk")
        assert host.program.status("L")["messages"]["queued"] == 0


def test_a_row_that_cannot_be_read_costs_itself_alone(
    spool: Path, target: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    leave(spool, *(("E", b"%d" % number) for number in range(3)))
    with contextlib.closing(sqlite3.connect(spool, isolation_level=None)) as connection:
        connection.execute("UPDATE calls SET topic = CAST(x'ff' AS TEXT) WHERE id = 2")
    with hosting(route(target.port), spool=str(spool)) as host:
        assert sorted(target.request().body for _ in range(2)) == [b"0", b"2"]
        host.client().publish("in/x", b"new")
        assert target.request().body == b"new"
        eventually(lambda: (host.program.status("L")["last_error"] or {}).get("code") == "unreadable_row")
        assert "route L: row 2 of the spool (event E) cannot be read" in caplog.text
        eventually(lambda: on_disk(spool) == 1, "not exactly the row that cannot be read stays")


def test_what_waits_for_an_event_that_is_gone_takes_no_room_from_its_route_and_is_sent_once_it_is_back(
    spool: Path, target: Recorder
) -> None:
    gate, bounded = Gate(), "WITH OVERLOAD_BYTES '1000'"
    both, one = (route(target.port, config=bounded, more=more) for more in ("F", ""))
    leave(spool, *(("E", b"E" * 800), ("E", b"E" * 800), ("F", b"F" * 800), ("F", b"F" * 800)))
    target.answer = gate.before(lambda seen: (200, seen.body[:1]))
    with hosting(both, spool=str(spool), workers=1) as host:
        gate.entered.get(timeout=SECONDS)
        load(host, one)
        client = host.client("out")
        gate.open.set()
        assert client.messages(2) == [("out", b"E")] * 2
        eventually(lambda: on_disk(spool) == 2)  # until then those of E take room
        client.publish("in/x", b"new")
        assert client.message() == ("out", b"n")
        load(host, both)
        assert client.messages(2) == [("out", b"F")] * 2
    assert on_disk(spool) == 0
