"""A worker that ends behind any of its effects loses no message: what it had not acknowledged comes again."""

from collections import defaultdict
from pathlib import Path

import pytest

from tests.support import crashing
from tests.support.http_recorder import Recorder, recording
from tests.support.waiting import eventually
from tests.worker.mosquitto import Mosquitto
from tests.worker.workers import LOSSLESS, Group, client_route

pytestmark = pytest.mark.mosquitto


class Rounds:
    """Rounds of messages: in each one a worker may crash, and the next one ends what is left."""

    def __init__(self, group: Group, mosquitto: Mosquitto, target: Recorder) -> None:
        group.routes(client_route("Lossless", target.port, "in/+", config=LOSSLESS))
        self._group = group
        self._publisher = mosquitto.client("publisher")
        self._watcher = mosquitto.client("watcher").subscribe("results/#")
        self._target = target
        self._results: set[bytes] = set()
        self.count = 0

    def play(self, effects: Path, behind: crashing.Point | None) -> bool:
        """Publish messages to a worker, then one more to the next worker; return True where the first one crashed."""
        self.count += 1
        first = self._group.start(crash=crashing.Crash(effects, behind), slots=1)
        eventually(lambda: first.process.poll() is not None or "ready:" in "".join(first.lines), "it is not ready")
        bodies = {b"%d-%d" % (self.count, number) for number in range(4)}
        for number, body in enumerate(sorted(bodies)):
            self._publisher.publish(f"in/{number}", body, qos=1 + number % 2)
        eventually(lambda: first.process.poll() is not None or self._has(bodies), "nothing came of a message")
        crashed = first.stop() != 0
        second = self._group.start(slots=1).ready()
        last = b"%d-last" % self.count
        self._publisher.publish("in/last", last)
        eventually(lambda: self._has(bodies | {last}), "nothing came of a message")
        assert second.stop() == 0
        self._check(behind)
        return crashed

    def _has(self, bodies: set[bytes]) -> bool:
        while not self._watcher.messages.empty():
            self._results.add(self._watcher.next()[1])
        return bodies <= self._results

    def _check(self, behind: crashing.Point | None) -> None:
        keys: dict[bytes, list[str]] = defaultdict(list)
        while not self._target.arrived.empty():
            seen = self._target.request()
            assert seen.body.startswith(b"%d-" % self.count), f"behind {behind}: {seen.body!r} came again"
            keys[seen.body].append(seen.headers["Idempotency-Key"])
        wrong = {body: used for body, used in keys.items() if len(set(used)) > 1 or len(used) > 2}
        assert not wrong, f"behind {behind}: {wrong}"
        assert len({used[0] for used in keys.values()}) == len(keys) == 5


def play(group: Group, mosquitto: Mosquitto, kinds: str, most: int | None) -> None:
    """Crash behind effects of some kinds, all of them or at most so many."""
    with recording() as target:
        rounds = Rounds(group, mosquitto, target)
        effects = group.folder / "effects"
        assert not rounds.play(effects, None)
        points = [point for point in crashing.points(crashing.read(effects)) if point[0].startswith(kinds)]
        assert len(points) >= 5  # publications, acknowledgements and records
        step = 1 if most is None else len(points) // most
        reached = 0
        for point in points[step // 2 :: step]:
            effects.unlink()
            reached += rounds.play(effects, point)
        assert reached


def test_a_crash_at_some_points_of_a_worker_loses_nothing(group: Group, mosquitto: Mosquitto) -> None:
    play(group, mosquitto, "MQTT", 3)


@pytest.mark.long
def test_a_crash_at_any_point_of_a_worker_loses_nothing(group: Group, mosquitto: Mosquitto) -> None:
    play(group, mosquitto, "", None)
