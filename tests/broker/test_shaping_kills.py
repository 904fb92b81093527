"""Settings that shape calls, in a broker that is killed: duplicates, changes, results of QoS 2, a dead target."""

import collections
import concurrent.futures
import contextlib
import itertools
import json
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.asking import ask_until_answered
from tests.support.broker_process import BrokerProcess
from tests.support.http_recorder import Recorder, recording
from tests.support.http_target import Seen
from tests.support.lossless import on_disk
from tests.support.ports import free_port
from tests.support.waiting import SECONDS, eventually

ROUTE = """DEFINE ROUTE L WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{port}" WITH ENABLE_CLIENT "true"
    ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless" {policy}
    ADD EVENT E WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}" {more}
"""
HOOKS = """
DEFINE ROUTE Hooks WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '{port}'
    ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "in/hook"
        WITH DEDUPE_KEY "{{header.webhook-id}}" WITH DEDUPE_FOR "1d"
"""
TOPICS = 7


class Keys:
    """What a server that answers 200 got: the Idempotency-Keys of each body, and the bodies in order."""

    def __init__(self, target: Recorder) -> None:
        self.of: dict[bytes, set[str | None]] = collections.defaultdict(set)
        self.bodies: list[bytes] = []
        target.answer = self.answer

    def answer(self, seen: Seen) -> tuple[int, bytes]:
        self.of[seen.body].add(seen.headers["Idempotency-Key"])
        self.bodies.append(seen.body)
        return 200, seen.body


@pytest.fixture
def target() -> Iterator[Recorder]:
    with recording() as recorder:
        yield recorder


@contextlib.contextmanager
def broker_of(folder: Path, routes: str) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(folder, routes, spool=str(folder / "spool.db"))
    try:
        broker.start()
        yield broker
        eventually(lambda: on_disk(folder / "spool.db") == 0, "a message stays on disk")
    finally:
        broker.close()


@pytest.mark.parametrize(("count", "kills"), [(60, 1), pytest.param(2000, 12, marks=pytest.mark.long)])
def test_webhooks_that_come_twice_while_the_broker_is_killed_all_arrive_and_hardly_one_twice(
    target: Recorder, tmp_path: Path, count: int, kills: int
) -> None:
    keys, port, numbers = Keys(target), free_port(), itertools.count(1)
    due = [threading.Event() for _ in range(kills)]

    def send(key: str) -> tuple[int, bytes]:
        answer = 503, b""  # as a bridge answers that has lost its broker, before it ends too
        while answer[0] == 503:
            answer = ask_until_answered(port, "/hook", key.encode(), webhook_id=key)[:2]
        passed, left = divmod(next(numbers), 2 * count // (kills + 1))
        if not left and passed <= kills:
            due[passed - 1].set()
        return answer

    routes = ROUTE.format(port=target.port, policy="", more="") + HOOKS.format(port=port)
    with broker_of(tmp_path, routes) as broker, concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(send, str(number)) for number in range(count) for _ in range(2)]
        try:
            for one in due:
                assert one.wait(SECONDS)
                broker.kill()
                broker.start()
        except BaseException:  # a start that failed: no others are sent
            pool.shutdown(cancel_futures=True)
            raise
        assert {one.result() for one in asked} == {(200, b'{"status": "published", "topic": "in/hook"}')}
    assert keys.of.keys() == {b"%d" % number for number in range(count)}
    twice = [body for body, own in keys.of.items() if len(own) > 1]
    assert len(twice) <= kills * 8  # whose key was not written yet


def state_of(number: int) -> int:
    """Return what a message has; each state holds for five messages of its topic."""
    return number // TOPICS // 5 % 3


class Publisher:
    """Publish numbers at QoS 1 until the broker is gone, and note which were acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self._next = 0

    def publish(self, port: int, until: int) -> None:
        with contextlib.suppress(OSError), contextlib.closing(Wire(port, "publisher")) as wire:
            while self._next < until:
                number, self._next = self._next, self._next + 1
                payload = json.dumps({"number": number, "state": state_of(number)}).encode()
                wire.send(publish_packet(f"in/{number % TOPICS}", payload, 1))
                wire.expect(0x40)
                self.acknowledged.add(number)


class Subscriber:
    """A persistent session of QoS 2, which comes back after each kill."""

    def __init__(self, port: int) -> None:
        self.got: collections.Counter[bytes] = collections.Counter()
        self._port = port
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Subscriber":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        held: dict[bytes, bytes] = {}
        while not self._stopped.wait(0.02):
            with contextlib.suppress(OSError), contextlib.closing(Wire(self._port, "s", 0.5, clean=False)) as wire:
                wire.subscribe("out", 2)
                while not self._stopped.is_set():
                    for kind, body in wire.receive():
                        self._take(wire, kind, body, held)

    def _take(self, wire: Wire, kind: int, body: bytes, held: dict[bytes, bytes]) -> None:
        if kind & 0xF6 == 0x34:
            end = 2 + struct.unpack_from(">H", body)[0]
            held[body[end : end + 2]] = body[end + 2 :]
            wire.send(b"\x50\x02" + body[end : end + 2])
        elif kind & 0xF0 == 0x60:
            self.got.update([held.pop(body)] if body in held else [])
            wire.send(b"\x70\x02" + body)


@pytest.mark.parametrize(("count", "kills"), [(300, 1), pytest.param(5000, 6, marks=pytest.mark.long)])
def test_no_change_is_lost_in_a_kill_of_the_broker_and_a_result_of_qos_2_comes_twice_only_with_its_call(
    target: Recorder, tmp_path: Path, count: int, kills: int
) -> None:
    keys, publisher = Keys(target), Publisher()
    more = 'WITH ON_CHANGE "{value.json.state}" WITH DESTINATION_TOPIC "out" WITH QOS 2'
    routes = ROUTE.format(port=target.port, policy="", more=more)
    with broker_of(tmp_path, routes) as broker, Subscriber(broker.port) as subscriber:
        for kill in range(1, kills + 1):
            publishing = threading.Thread(target=publisher.publish, args=(broker.port, count))
            publishing.start()
            eventually(lambda kill=kill: len(publisher.acknowledged) >= kill * count // (kills + 1))  # type: ignore[misc]
            broker.kill()
            publishing.join()
            broker.start()
        publisher.publish(broker.port, count)
        eventually(lambda: keys.bodies[-1] in subscriber.got, "the last result does not arrive")
    assert all(len(own) == 1 for own in keys.of.values())
    calls = collections.Counter(keys.bodies)
    assert all(results <= calls[body] for body, results in subscriber.got.items())
    sent = {json.loads(body)["number"] for body in keys.of}
    for number in publisher.acknowledged - sent:  # equals the last one of its topic that was sent
        before = next(one for one in range(number - TOPICS, -1, -TOPICS) if one in sent)
        assert state_of(number) == state_of(before), number


def test_messages_that_wait_for_a_dead_target_survive_a_kill_of_the_broker(target: Recorder, tmp_path: Path) -> None:
    publisher, refused = Publisher(), list[bytes]()

    def refuse(seen: Seen) -> tuple[int, bytes]:
        refused.append(seen.body)
        return 503, b""

    target.answer = refuse
    routes = ROUTE.format(port=target.port, policy='WITH BREAKER "5 per 30s"', more="")
    with broker_of(tmp_path, routes) as broker:
        publisher.publish(broker.port, 40)
        eventually(lambda: "the breaker is open" in broker.log, "the breaker stays closed")
        broker.kill()
        keys = Keys(target)
        broker.start()
    assert {json.loads(body)["number"] for body in keys.of} == publisher.acknowledged
    assert all(len(own) == 1 for own in keys.of.values())
