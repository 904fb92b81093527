"""Brokers and bridges that are killed under load: batches, changed policies, duplicates, changes, dead targets."""

import collections
import concurrent.futures
import contextlib
import itertools
import json
import os
import signal
import struct
import threading
from pathlib import Path

import pytest

from tests.benchmarks.mqtt_wire import Wire
from tests.broker.conftest import StartBroker
from tests.broker.publisher import TOPICS, Publisher
from tests.support.asking import ask_until_answered
from tests.support.broker_process import BrokerProcess
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import Recorder
from tests.support.http_target import Seen
from tests.support.lossless import Keys, on_disk, route
from tests.support.ports import free_port
from tests.support.waiting import SECONDS, eventually

HOOKS = """
DEFINE ROUTE Hooks WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '{port}'
    ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "in/hook"
        WITH DEDUPE_KEY "{{header.webhook-id}}" WITH DEDUPE_FOR "1d"
"""
BATCH_SIZE = 100
AT_ONCE = 20  # a part of a batch, and of 500


def await_empty(spool: Path) -> None:
    eventually(lambda: on_disk(spool) == 0, "a message stays on disk")


def batching(target: Recorder) -> str:
    """Return a route whose batches end only when they are full, or when a later one begins."""
    event = f"WITH BATCH_SIZE {BATCH_SIZE} WITH BATCH_SECONDS 3600"
    return route(target.port, 1_000_000, body="{batch}", event=event)


class Batches:
    """What a server got: the bodies of each key, the keys of each message, how often each key came."""

    def __init__(self, target: Recorder) -> None:
        self.bodies: dict[str, set[bytes]] = collections.defaultdict(set)
        self.keys: dict[int, set[str]] = collections.defaultdict(set)
        self.requests: collections.Counter[str] = collections.Counter()
        self.refusing = threading.Event()
        target.answer = self._answer

    def _answer(self, seen: Seen) -> tuple[int, bytes]:
        key = seen.headers["Idempotency-Key"] or ""
        self.bodies[key].add(seen.body)
        self.requests[key] += 1
        for number in json.loads(seen.body):
            self.keys[number].add(key)
        return (503, b"") if self.refusing.is_set() else (200, b"")

    def await_refused(self) -> None:
        """Refuse from now on, until there are requests that have to come again."""
        self.refusing.set()
        before = self.requests.total()
        eventually(lambda: self.requests.total() > before + 1, "nothing is sent")

    def await_all(self, publisher: Publisher) -> None:
        eventually(lambda: publisher.acknowledged <= self.keys.keys(), "a message is missing")

    def check(self) -> None:
        """Some requests came again, and each message in the same batch with the same key."""
        assert {key for key, bodies in self.bodies.items() if len(bodies) > 1} == set()
        assert {number: keys for number, keys in self.keys.items() if len(keys) > 1} == {}
        assert max(self.requests.values()) > 1


@pytest.mark.parametrize(
    ("count", "kills"), [pytest.param(300, 2, id="1000"), pytest.param(2000, 10, id="20000", marks=pytest.mark.long)]
)
def test_batches_that_come_again_after_a_kill_hold_the_same_messages_and_have_the_same_key(
    target: Recorder, start_broker: StartBroker, count: int, kills: int
) -> None:
    publisher, batches = Publisher(AT_ONCE), Batches(target)
    broker = start_broker(batching(target))
    for kill in range(kills):
        with publisher.publishing(broker.port):
            eventually(lambda kill=kill: len(publisher.acknowledged) >= (kill + 1) * count)  # type: ignore[misc]
            batches.await_refused()
            broker.kill()
        batches.refusing.clear()
        broker.start()
    filling = Publisher(AT_ONCE, lambda number: b"-%d" % (number + 1))
    publisher.publish(broker.port, count)
    filling.publish(broker.port, BATCH_SIZE)  # so that the last batches of the publisher end
    batches.await_all(publisher)
    batches.check()


def test_batches_are_the_same_after_a_bridge_process_was_killed(target: Recorder, spool: Path) -> None:
    publisher, batches = Publisher(AT_ONCE), Batches(target)
    with hosting(batching(target), processes=1, spool=str(spool)) as host:
        for _ in range(2):
            batches.refusing.set()
            publisher.publish(host.mqtt_port, 5 * BATCH_SIZE)
            batches.await_refused()
            os.kill(host.child.pid or 0, signal.SIGKILL)
            batches.refusing.clear()
            await_empty(spool)
    batches.await_all(publisher)
    batches.check()


Phase = tuple[str, int, int]  # the policy, and the numbers of the run and of the change


class Phased(Publisher):
    """Notes what was acknowledged under a policy that held from before it was sent until after its PUBACK."""

    def __init__(self) -> None:
        super().__init__(at_once=5)
        self.phase: Phase | None = None
        self.of: dict[Phase | None, set[int]] = collections.defaultdict(set)
        self._before: Phase | None = None

    def publish_some(self, wire: Wire) -> None:
        threading.Event().wait(0.005)  # as much load as the target can answer meanwhile
        self._before = self.phase
        super().publish_some(wire)

    def note_acknowledged(self, number: int) -> None:
        if self.phase is self._before:
            self.of[self._before].add(number)

    def await_load(self) -> None:
        eventually(lambda: len(self.of[self.phase]) > 5, "nothing is acknowledged")


def reload(broker: BrokerProcess, file: Path, text: str) -> None:
    """Change the routes of a running broker and wait until it uses them."""
    count = broker.log.count("routes reloaded")
    temporary = file.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(file)
    eventually(lambda: broker.log.count("routes reloaded") > count, "the routes are not reloaded")


@pytest.mark.parametrize("kills", [pytest.param(1, id="1"), pytest.param(20, marks=pytest.mark.long)])
def test_what_was_acknowledged_while_the_route_was_lossless_is_sent_whatever_it_was_when_the_broker_was_killed(
    tmp_path: Path, target: Recorder, start_broker: StartBroker, spool: Path, kills: int
) -> None:
    requests: dict[int, list[str | None]] = collections.defaultdict(list)

    def answer(seen: Seen) -> tuple[int, bytes]:
        requests[int(seen.body)].append(seen.headers["Idempotency-Key"])
        return 200, b""

    target.answer = answer
    lossless, publisher, policy = route(target.port, 1_000_000), Phased(), "lossless"
    texts = {"lossless": lossless, "balanced": lossless.replace('"lossless"', '"balanced"')}
    broker = start_broker(lossless, reload_seconds=0.02)
    for number in range(kills):
        publisher.phase = (policy, number, 0)
        with publisher.publishing(broker.port):
            for toggle in range(1, 2 + number % 2):  # so that it is killed while lossless and while balanced
                publisher.await_load()
                publisher.phase = None
                policy = "balanced" if policy == "lossless" else "lossless"
                reload(broker, tmp_path / "routes.lot", texts[policy])
                publisher.phase = (policy, number, toggle)
            publisher.await_load()
            broker.kill()
        broker.start()
    await_empty(spool)
    phases = [numbers for phase, numbers in publisher.of.items() if phase is not None and phase[0] == "lossless"]
    kept = set[int]().union(*phases)
    assert len(kept) > 5
    assert kept - requests.keys() == set()
    twice = {number: keys for number, keys in requests.items() if len(keys) > 1}
    assert {number: keys for number, keys in twice.items() if len(set(keys)) > 1 or None in keys} == {}


@pytest.mark.parametrize(("count", "kills"), [(60, 1), pytest.param(2000, 12, marks=pytest.mark.long)])
def test_webhooks_that_come_twice_while_the_broker_is_killed_all_arrive_and_hardly_one_twice(
    target: Recorder, start_broker: StartBroker, spool: Path, count: int, kills: int
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

    broker = start_broker(route(target.port) + HOOKS.format(port=port))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
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
    await_empty(spool)
    assert keys.of.keys() == {b"%d" % number for number in range(count)}
    twice = [body for body, own in keys.of.items() if len(own) > 1]
    assert len(twice) <= kills * 8  # whose key was not written yet


def state_of(number: int) -> int:
    """Return what a message has; each state holds for five messages of its topic."""
    return number // TOPICS // 5 % 3


def payload_of(number: int) -> bytes:
    return json.dumps({"number": number, "state": state_of(number)}).encode()


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


@pytest.mark.parametrize(("count", "kills"), [(150, 1), pytest.param(700, 6, marks=pytest.mark.long)])
def test_no_change_is_lost_in_a_kill_of_the_broker_and_a_result_of_qos_2_comes_twice_only_with_its_call(
    target: Recorder, start_broker: StartBroker, spool: Path, count: int, kills: int
) -> None:
    keys, publisher = Keys(target), Publisher(1, payload_of)
    broker = start_broker(route(target.port, event='WITH ON_CHANGE "{value.json.state}" WITH QOS 2'))
    with Subscriber(broker.port) as subscriber:
        for kill in range(kills):
            with publisher.publishing(broker.port):
                eventually(lambda kill=kill: len(publisher.acknowledged) >= (kill + 1) * count)  # type: ignore[misc]
                broker.kill()
            broker.start()
        publisher.publish(broker.port, count)
        eventually(lambda: keys.bodies[-1] in subscriber.got, "the last result does not arrive")
    await_empty(spool)
    assert all(len(own) == 1 for own in keys.of.values())
    calls = collections.Counter(keys.bodies)
    assert all(results <= calls[body] for body, results in subscriber.got.items())
    sent = {json.loads(body)["number"] for body in keys.of}
    for number in publisher.acknowledged - sent:  # equals the last one of its topic that was sent
        before = next(one for one in range(number - TOPICS, -1, -TOPICS) if one in sent)
        assert state_of(number) == state_of(before), number


def test_messages_that_wait_for_a_dead_target_survive_a_kill_of_the_broker(
    target: Recorder, start_broker: StartBroker, spool: Path
) -> None:
    publisher = Publisher()
    target.answer = lambda _: (503, b"")
    broker = start_broker(route(target.port, config='WITH BREAKER "5 per 30s"'))
    publisher.publish(broker.port, 40)
    eventually(lambda: "the breaker is open" in broker.log, "the breaker stays closed")
    broker.kill()
    keys = Keys(target)
    broker.start()
    await_empty(spool)
    assert keys.of.keys() == publisher.payloads
    assert all(len(own) == 1 for own in keys.of.values())
