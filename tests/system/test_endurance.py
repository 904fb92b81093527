"""Load, and things that go wrong meanwhile: every message is accounted for, nothing grows."""

import http.client
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from tests.benchmarks import rig
from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.broker_process import BrokerProcess
from tests.support.http_recorder import recording
from tests.support.ports import free_port
from tests.support.publishing import Listener
from tests.support.waiting import eventually

PER_SECOND = 100
WORKERS = 16  # of each of two routes; a thread without work and an idle connection stay for a while


def routes(target: int, port: int, extra: str = "") -> str:
    client = "".join(
        f"""
        DEFINE ROUTE {topic.capitalize()} WITH TYPE REST_API
            ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{target}" WITH ENABLE_CLIENT "true"
            ADD EVENT E
                WITH SOURCE_TOPIC "{topic}" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
                WITH DESTINATION_TOPIC "{topic}/out"
            ADD ROUTE_CONFIG WITH OVERLOAD_CAPACITY '1000000' WITH OVERLOAD_POLICY "{policy}"
        """
        for topic, policy in (("plain", "balanced"), ("lossless", "lossless"))
    )
    return f"""
        {client}
        DEFINE ROUTE Hook WITH TYPE REST_API
            ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '{port}'
            ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "hook/out"
        {extra}
    """


class Traffic:
    """100 messages a second to each client-mode route and 100 requests a second, until `stop`.

    Args:
        most_waiting: Messages of a route without an end beyond which none is sent: a machine that is too slow for the
            rate has them in memory.
    """

    def __init__(self, mqtt: int, http_port: int, most_waiting: int = 1_000_000) -> None:
        self._most_waiting = most_waiting
        self.sent: Counter[str] = Counter()
        self.answered = 0
        self.results: Counter[tuple[str, bytes]] = Counter()
        self.received = 0  # results
        self.failures: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self._over = threading.Event()
        self._receiver = Listener(mqtt, "+/out", qos=0, note=self._note)
        self._sender = Wire(mqtt, "sender")
        self._http_port = http_port
        self._senders = [threading.Thread(target=self._publish), threading.Thread(target=self._request)]
        for thread in self._senders:
            thread.start()

    def all_ended(self, topic: str) -> Callable[[], bool]:
        """Return a test for whether every message of a topic has its end."""
        return lambda: self.ends[topic] >= self.sent[topic]

    def stop_sending(self) -> None:
        self._over.set()
        for thread in self._senders:
            thread.join()

    def close(self) -> None:
        self.stop_sending()
        self._receiver.close()
        self._sender.close()

    def _paced(self, send: Callable[[int], None]) -> None:
        started, number = monotonic(), 0
        while not self._over.wait(max(0.0, started + number / PER_SECOND - monotonic())):
            send(number)
            number += 1

    def _publish(self) -> None:
        def send(number: int) -> None:
            for topic in ("plain", "lossless"):
                if self.sent[topic] - self.ends[topic] < self._most_waiting:
                    self._sender.send(publish_packet(topic, b"%d" % number, 1 + number % 60_000))
                    self.sent[topic] += 1

        self._paced(send)

    def _request(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._http_port, timeout=30)

        def send(number: int) -> None:
            try:
                connection.request("POST", "/hook", b"%d" % number)
                response = connection.getresponse()
                response.read()
                self.answered += response.status == 200
            except (OSError, http.client.HTTPException):
                connection.close()  # the bridge process was killed while it had this request

        self._paced(send)
        connection.close()

    def _note(self, topic: str, payload: bytes) -> None:
        own = topic.removesuffix("/out")
        self.ends[own] += 1
        if payload.startswith(b'{"error"'):
            self.failures[own] += 1
        else:
            self.results[own, payload] += 1
            self.received += 1


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[BrokerProcess, int, int]]:
    with recording() as target:
        port = free_port()
        broker = BrokerProcess(tmp_path, routes(target.port, port), spool=str(tmp_path / "spool.db"))
        broker.bridges = 0
        broker.start()
        try:
            yield broker, target.port, port
        finally:
            broker.close()


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.long)])
def test_a_bridge_process_killed_again_and_again_costs_no_message_its_end(
    running: tuple[BrokerProcess, int, int], kills: int
) -> None:
    broker, _, port = running
    moments = random.Random(11)
    traffic = Traffic(broker.port, port)
    pause = threading.Event()
    for _ in range(kills):
        pause.wait(moments.uniform(0.3, 1.2))
        for bridge in rig.children(broker.pid):
            os.kill(bridge, signal.SIGKILL)
        wanted = traffic.received + 20
        # The first restart is at once, those that follow soon wait 1, 2, 4 ... 30 s.
        eventually(lambda wanted=wanted: traffic.received > wanted, "no traffic after a kill", 60)  # type: ignore[misc]
    traffic.stop_sending()

    def different(wanted: str) -> int:
        return sum(topic == wanted for topic, _ in list(traffic.results))

    # What came while the bridge was away, up to 30 s at a time, has to be sent first. A lossless message that was under
    # way at a kill may have two results.
    eventually(traffic.all_ended("plain"), "plain: a message has no end", 60 * kills)
    eventually(lambda: different("lossless") == traffic.sent["lossless"], "lossless: no result", 60 * kills)
    traffic.close()
    assert traffic.ends["plain"] == traffic.sent["plain"]
    assert traffic.failures["lossless"] == 0
    assert different("hook") >= traffic.answered


@pytest.mark.parametrize("reloads", [4, pytest.param(1000, marks=pytest.mark.long)])
def test_reloads_under_load_lose_nothing_and_leave_nothing_behind(
    running: tuple[BrokerProcess, int, int], reloads: int, tmp_path: Path
) -> None:
    broker, target, port = running
    traffic = Traffic(broker.port, port, most_waiting=200)
    file = tmp_path / "routes.lot"
    log_size = len(broker.log)
    processes = [broker.pid, *rig.children(broker.pid)]
    memories = dict.fromkeys(processes, 0.0)
    opened: dict[int, list[tuple[int, int]]] = {pid: [] for pid in processes}
    for number in range(reloads):
        other = f"""
            DEFINE ROUTE Other WITH TYPE REST_API
                ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0'
                ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/v{number}" WITH DESTINATION_TOPIC "other"
        """
        file.write_text(routes(target, port, "" if number % 2 else other))
        before = broker.log.count("routes reloaded")
        os.kill(broker.pid, signal.SIGHUP)
        eventually(lambda before=before: broker.log.count("routes reloaded") > before, "no reload")  # type: ignore[misc]
        for pid in processes:
            memories[pid] = memories[pid] or rig.resident_mb(pid)
            if number < reloads / 2:  # what is open under load varies, most of all on a starved machine
                opened[pid].append(open_things(pid))
    traffic.stop_sending()
    for topic in ("plain", "lossless"):
        eventually(traffic.all_ended(topic), f"{topic}: a message has no end")
    eventually(lambda: traffic.ends["hook"] >= traffic.answered, "an answered request was not published")
    traffic.close()
    assert not traffic.failures
    assert set(traffic.results.values()) == {1}, "a message arrived twice"
    assert "error" not in broker.log[log_size:].lower().replace("error_topic", "")
    for pid, memory in memories.items():
        threads, descriptors = map(max, zip(*opened[pid], strict=True))
        assert rig.resident_mb(pid) - memory < 20, "memory grows"
        eventually(within(pid, 0, threads + 2 * WORKERS), "threads are left over")
        eventually(within(pid, 1, descriptors + 2 * WORKERS), "descriptors are left over")


def within(pid: int, which: int, most: int) -> Callable[[], bool]:
    """Return a test for whether a process has at most that many of one kind of `open_things`."""
    return lambda: open_things(pid)[which] <= most


def open_things(pid: int) -> tuple[int, int]:
    """Count a process's threads and open descriptors."""
    return len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208  # as short as it gets
