"""Lossless routes while something else goes wrong: reloads under load, an ACL that fails, a row that cannot be read."""

import collections
import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest
from amqtt.contexts import Action
from amqtt.plugins.base import BaseTopicPlugin
from amqtt.session import Session

from amqtt_rest_bridge.lot.model import Message
from amqtt_rest_bridge.store import Spool
from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import recording
from tests.support.http_target import Seen
from tests.support.lossless import load, on_disk, route
from tests.support.waiting import eventually

MOST_UNDERWAY = 200


@pytest.mark.parametrize("toggles", [pytest.param(2, id="2"), pytest.param(60, marks=pytest.mark.long)])
def test_a_route_that_is_made_lossless_and_balanced_under_load_sends_each_message_once(
    tmp_path: Path, toggles: int
) -> None:
    with recording() as target:
        counts: collections.Counter[bytes] = collections.Counter()
        lock = threading.Lock()

        def answer(seen: Seen) -> tuple[int, bytes]:
            with lock:
                counts[seen.body] += 1
            return 200, b""

        target.answer = answer
        lossless = route(target.port, 1_000_000)
        balanced = lossless.replace('"lossless"', '"balanced"')
        with hosting(lossless, spool=str(tmp_path / "spool.db")) as host:
            over = threading.Event()
            wire, sent = Wire(host.mqtt_port, "sender"), [0]

            def send() -> None:
                while not over.is_set():
                    # As fast as calls end: what waits at the end would else take longer with each of them.
                    eventually(lambda: over.is_set() or sent[0] - len(counts) < MOST_UNDERWAY, "calls do not end")
                    bodies = [b"%d" % number for number in range(sent[0], sent[0] + 50)]
                    wire.send(b"".join(publish_packet("in/x", body, 1 + index) for index, body in enumerate(bodies)))
                    waiting = len(bodies)
                    while waiting:
                        waiting -= sum(kind == 0x40 for kind, _ in wire.receive())
                    sent[0] += len(bodies)

            sending = threading.Thread(target=send)
            sending.start()
            for number in range(toggles):
                load(host, (balanced, lossless)[number % 2])
            over.set()
            sending.join()
            eventually(lambda: len(counts) == sent[0], "a message is missing")
            eventually(lambda: on_disk(tmp_path / "spool.db") == 0, "an ended call stays on disk")
            assert set(counts.values()) == {1}
            wire.close()


class FailingOnce(BaseTopicPlugin):
    """An ACL that fails when it is asked for the first time, and then lets everything pass."""

    failed: ClassVar[bool] = False

    async def topic_filtering(
        self, *, session: Session | None = None, topic: str | None = None, action: Action | None = None
    ) -> bool:
        if action is Action.PUBLISH and not FailingOnce.failed:
            FailingOnce.failed = True
            raise ConnectionError("the user database is away")
        return True


def test_a_kill_before_the_acl_decided_and_an_acl_that_fails_then_cost_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FailingOnce, "failed", False)
    with contextlib.closing(Spool(tmp_path / "spool.db")) as spool:
        spool.keep("L", "E", Message("in/x", b"kept", 1000.0), 0, ("sender", None))
    acl: dict[str, Any] = {f"{FailingOnce.__module__}.FailingOnce": {}}
    with recording() as target, hosting(route(target.port), acl, spool=str(tmp_path / "spool.db")) as host:
        assert target.request().body == b"kept"
        assert FailingOnce.failed
        eventually(lambda: on_disk(tmp_path / "spool.db") == 0, "an ended call stays on disk")
        assert host.program.status("L")["messages"]["queued"] == 0


def test_a_row_that_cannot_be_read_costs_itself_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "spool.db"
    with contextlib.closing(Spool(path)) as spool:
        for number in range(3):
            spool.keep("L", "E", Message("in/x", b"%d" % number, 1000.0), 0, None)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE calls SET topic = CAST(x'ff' AS TEXT) WHERE id = 2")
    with recording() as target, hosting(route(target.port), spool=str(path)) as host:
        assert sorted(target.request().body for _ in range(2)) == [b"0", b"2"]
        host.client().publish("in/x", b"new")
        assert target.request().body == b"new"
        eventually(lambda: (host.program.status("L")["last_error"] or {}).get("code") == "unreadable_row")
        assert "route L: row 2 of the spool (event E) cannot be read" in caplog.text
        eventually(lambda: on_disk(path) == 1, "not exactly the row that cannot be read stays")


def of_events(port: int, *names: str) -> str:
    """A lossless route with these events, by the topics of their names, and room for one message of each."""
    events = "".join(
        f"""ADD EVENT {name} WITH SOURCE_TOPIC "{name}" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
            WITH DESTINATION_TOPIC "out"
        """
        for name in names
    )
    return f"""DEFINE ROUTE L WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{port}" WITH ENABLE_CLIENT "true"
        ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless" WITH OVERLOAD_BYTES '1000'
        {events}
    """


def test_what_waits_for_an_event_that_is_gone_takes_no_room_from_its_route_and_is_sent_once_it_is_back(
    tmp_path: Path,
) -> None:
    spool, released = tmp_path / "spool.db", threading.Event()
    with contextlib.closing(Spool(spool)) as left:
        for event in "EEFF":
            left.keep("L", event, Message(event, event.encode() * 800, 1.0), 0, None)

    def answer(seen: Seen) -> tuple[int, bytes]:
        released.wait()
        return 200, seen.body[:1]

    with recording() as target:
        target.answer = answer
        with hosting(of_events(target.port, "E", "F"), spool=str(spool), workers=1) as host:
            target.request()
            load(host, of_events(target.port, "E"))
            client = host.client("out")
            released.set()
            assert client.messages(2) == [("out", b"E")] * 2
            eventually(lambda: on_disk(spool) == 2)  # until then those of E take room
            client.publish("E", b"new")
            assert client.message() == ("out", b"n")
            load(host, of_events(target.port, "E", "F"))
            assert client.messages(2) == [("out", b"F")] * 2
        assert on_disk(spool) == 0
