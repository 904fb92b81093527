"""A worker that ends behind any of its effects loses no message: what it had not acknowledged comes again."""

import signal
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support import crashing
from tests.support.http_recorder import Recorder, recording
from tests.support.waiting import eventually
from tests.worker.workers import LOSSLESS, Group, client_route

pytestmark = pytest.mark.mosquitto


class Rounds:
    """Rounds of messages: in each one a worker may crash, and the next one ends what is left."""

    def __init__(self, group: Group, target: Recorder) -> None:
        group.routes(client_route("Lossless", target.port, "in/+", config=LOSSLESS))
        self._group = group
        self._target = target
        self._results: set[bytes] = set()
        self.count = 0

    def play(self, effects: Path, behind: crashing.Point | None) -> bool:
        """Publish messages to a worker, then one more to the next worker; return True where the first one crashed."""
        self.count += 1
        first = self._group.start(crash=crashing.Crash(effects, behind), slots=1)
        eventually(lambda: first.process.poll() is not None or first.has_written("ready:"), "it is not ready")
        bodies = {b"%d-%d" % (self.count, number) for number in range(4)}
        for number, body in enumerate(sorted(bodies)):
            self._group.client.publish(f"in/{number}", body, qos=1 + number % 2)
        eventually(lambda: first.process.poll() is not None or self._has(bodies), "nothing came of a message")
        first.send(signal.SIGTERM)
        crashed = first.end() != 0
        second = self._group.start(slots=1).ready()
        last = b"%d-last" % self.count
        self._group.client.publish("in/last", last)
        eventually(lambda: self._has(bodies | {last}), "nothing came of a message")
        second.stop()
        keys: dict[bytes, list[str]] = defaultdict(list)
        for seen in self._target.take_all():
            keys[seen.body].append(seen.headers["Idempotency-Key"])
        assert keys.keys() == bodies | {last}, f"behind {behind}: what had ended came again"
        wrong = {body: used for body, used in keys.items() if len(set(used)) > 1 or len(used) > 2}
        assert not wrong, f"behind {behind}: {wrong}"
        assert len({used[0] for used in keys.values()}) == 5
        return crashed

    def _has(self, bodies: set[bytes]) -> bool:
        while not self._group.client.messages.empty():
            self._results.add(self._group.client.next()[1])
        return bodies <= self._results


@pytest.mark.parametrize(
    ("kinds", "most"),
    [
        pytest.param("MQTT", 3, id="some of those of MQTT"),
        pytest.param("", None, id="all", marks=pytest.mark.long),
    ],
)
def test_a_crash_at_some_points_of_a_worker_loses_nothing(group: Group, kinds: str, most: int | None) -> None:
    """Behind effects of some kinds, all of them or at most so many."""
    with recording() as target:
        rounds = Rounds(group, target)
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
