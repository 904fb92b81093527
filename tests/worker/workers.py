"""`rest-bridge worker` as its users run it: processes of one group beside a broker."""

import json
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from tests.support import crashing
from tests.support.commands import Running
from tests.support.forked import REST_BRIDGE, Forked
from tests.support.http_target import Peer, Target, reply
from tests.support.waiting import eventually
from tests.worker.mosquitto import SECONDS, Client, Mosquitto

LOSSLESS = 'WITH OVERLOAD_POLICY "lossless"'
ORDERED = 'WITH ORDERED "true"'
TOPICS = 8
CONSTANTS: Mapping[str, object] = {
    "amqtt_rest_bridge.group.leases.GONE_SECONDS": 1.0,
    "amqtt_rest_bridge.signals.SHUTDOWN_SECONDS": 60.0,
}
"""The slots of a worker that was killed are free after a second, not three. A stop may take a minute, not ten seconds,
since the machine may be busy.
"""


def client_route(
    name: str, port: int, topic: str, *, config: str = "", event: str = "", path: str = "/", timeout: int = 30
) -> str:
    """Write a route that posts each message of a topic filter and publishes the answer on `results/<name>`."""
    return f"""
DEFINE ROUTE {name} WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH ENABLE_CLIENT "true"
        WITH BASE_ADDRESS "http://127.0.0.1:{port}"
        WITH RETRIES 0
        WITH REQUEST_TIMEOUT {timeout}
    {config and f"ADD ROUTE_CONFIG {config}"}
    ADD EVENT Call
        WITH SOURCE_TOPIC "{topic}"
        WITH METHOD "POST"
        WITH ENDPOINT "{path}"
        WITH BODY "{{payload}}"
        WITH DESTINATION_TOPIC "results/{name}"
        WITH HEADERS
            ADD "Content-Type" "text/plain"
            ADD "X-Topic" "{{topic}}"
        {event}
"""


def in_order(target: Target, *, config: str = LOSSLESS, timeout: int = 30) -> str:
    """Write a route with an ORDERED event, of `ordered_topic`."""
    return client_route("InOrder", target.port, "in/+", config=config, event=ORDERED, timeout=timeout)


def ordered_topic(number: int) -> str:
    return f"in/{number % TOPICS}"


def publish_all(client: Client, topic: Callable[[int], str], numbers: range) -> None:
    """Publish numbers, and wait until the broker has them."""
    infos = []
    for number in numbers:
        infos.append(client.publish(topic(number), b"%d" % number, wait=False))
        if len(infos) % 500 == 0:
            infos[-1].wait_for_publish(60)
    for info in infos:
        info.wait_for_publish(60)
        assert info.is_published()


def hanging(peer: Peer) -> None:
    """Take a request and answer nothing."""
    if peer.request() is not None:
        peer.wait()


def _slowly(seconds: float, peer: Peer) -> None:
    while (seen := peer.request()) is not None:
        peer.server.stopping.wait(seconds)
        peer.send(reply(seen.body))


def slowly(seconds: float) -> Callable[[Peer], None]:
    """Answer each request with its body, after so many seconds."""
    return partial(_slowly, seconds)


def wait_for_calls(target: Target, count: int, seconds: float = SECONDS) -> None:
    """Wait until so many messages have been called."""
    eventually(lambda: len({seen.body for seen in list(target.requests)}) >= count, "not all were called", seconds)


def check(target: Target, count: int, *, doubled: int = 0) -> None:
    """Each message was called once (but `doubled` of them), and those of a topic in their order."""
    called = [int(seen.body) for seen in target.requests]
    assert set(called) == set(range(count)), f"{count - len(set(called))} lost"
    assert len(called) - count <= doubled, Counter(called).most_common(5)
    assert {topic: steps for topic, steps in steps_back(called).items() if steps} == {}


def steps_back(numbers: list[int]) -> dict[int, list[tuple[int, int]]]:
    """Return where the numbers of each topic go back."""
    by_topic: dict[int, list[int]] = defaultdict(list)
    for number in numbers:
        by_topic[number % TOPICS].append(number)
    return {topic: [pair for pair in pairwise(own) if pair[1] < pair[0]] for topic, own in by_topic.items()}


def check_keys(target: Target) -> None:
    """Each lossless message was always sent with one key, and every other message with another."""
    keys: dict[bytes, set[str]] = defaultdict(set)
    for seen in target.requests:
        if values := seen.values("idempotency-key"):
            keys[seen.body].add(values[0])
    assert keys and all(len(some) == 1 for some in keys.values())
    assert len(set.union(*keys.values())) == len(keys)


class Worker(Running):
    """One worker's process."""

    def ready(self) -> Self:
        """Wait until it takes messages."""
        self.line("ready:")
        return self

    def has_written(self, *parts: str) -> bool:
        """Return whether it has written a line that holds one of some texts."""
        return any(part in line for line in self.lines for part in parts)

    def wrote(self, *parts: str) -> None:
        """Wait until it has written a line that holds one of some texts, if it has not before."""
        try:
            eventually(lambda: self.has_written(*parts), f"it has not written {parts!r}", SECONDS)
        except AssertionError as error:
            raise AssertionError("\n".join([f"{error}; its last lines:", *self.lines[-40:]])) from None

    def id(self) -> str:
        """Wait until it takes messages, and return the id by which its group knows it."""
        self.wrote("ready:")
        ready = next(line for line in self.lines if "ready:" in line)
        return ready.partition("ready: ")[2].partition(",")[0]

    def admin_port(self) -> int:
        """Wait until it takes messages, and return the port that `admin_port: 0` gave it."""
        self.wrote("ready:")
        return next(int(line.rpartition(":")[2]) for line in self.lines if "status page and metrics" in line)

    def stop(self) -> None:
        """End it with SIGTERM, in order."""
        self.send(signal.SIGTERM)
        self.ended()

    def ended(self) -> None:
        """Wait until it has ended in order."""
        assert self.end() == 0, "\n".join(self.lines[-40:])


class Group:
    """The workers of a group, all with one folder of routes."""

    def __init__(self, folder: Path, broker: Mosquitto) -> None:
        self.folder = folder
        self.broker = broker
        self.workers: list[Worker] = []
        (folder / "routes").mkdir(exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()

    def watched(self) -> Self:
        """Connect `client`, which gets the results of each `client_route`."""
        self.client: Client = self.broker.client("client").subscribe("results/#")
        return self

    def routes(self, *texts: str, name: str = "routes.lot") -> None:
        """Write a route file, in one step, so that no reload sees half of it."""
        path = self.folder / "routes" / name
        path.with_suffix(".new").write_text("".join(texts))
        path.with_suffix(".new").rename(path)

    def start(
        self, slot: int = 0, crash: crashing.Crash | None = None, constants: Mapping[str, object] | None = None,
        **settings: Any,
    ) -> Worker:  # fmt: skip
        """Start a worker, which may note its effects and crash behind one of them; `ready` waits for it."""
        configuration = {
            "broker": self.broker.url, "group": "plant", "slots": 2, "slot": slot, "adopt_seconds": 30,
            "routes": str(self.folder / "routes"), "reload_seconds": 0, **settings,
        }  # fmt: skip
        path = self.folder / f"worker-{slot}.yaml"
        path.write_text(json.dumps(configuration))
        module, environment = (REST_BRIDGE, None) if crash is None else crash.of(REST_BRIDGE)
        constants = {**CONSTANTS, **(constants or {})}
        worker = Worker(
            Forked(module, ["worker", "-c", str(path)], self.folder, environment=environment, constants=constants)
        )
        self.workers.append(worker)
        return worker
