"""A broker that ends behind any of its effects keeps what it promises of lossless messages when it starts again."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support import crashing
from tests.system.crash_stories import STORIES, begin, living, play, recover

FEW = 2
"""Points of a story in the usual suite."""
AT_ONCE = 3
"""Brokers that live beside each other, since each waits most of the time."""

ALL_STORIES = pytest.mark.parametrize("story", STORIES)


def points_of(story: str, qos: int) -> list[crashing.Point]:
    """Play a story to its end and return its points."""
    with living(story, qos) as life:
        begin(life, story)
        assert not play(life, story, None)
        found = crashing.points(crashing.read(life.broker.effects))
        recover(life)
    return found


def crashes_at(story: str, qos: int, point: crashing.Point) -> bool:
    """Play a story to a point, then check what the next broker does; return True where it came to that point."""
    with living(story, qos) as life:
        begin(life, story)
        crashed = play(life, story, point)
        recover(life)
    return crashed


def check(story: str, qos: int, points: list[crashing.Point]) -> int:
    """Crash at each point; return how many were reached: how many commits and frames there are differs a little."""

    def crash(point: crashing.Point) -> bool | str:
        try:
            return crashes_at(story, qos, point)
        except AssertionError as error:
            return f"behind {point}: {error}"

    with ThreadPoolExecutor(AT_ONCE) as lives:
        ends = list(lives.map(crash, points))
    faults = [end for end in ends if isinstance(end, str)]
    assert not faults, "\n\n".join(faults)
    return ends.count(True)


@pytest.mark.parametrize(("story", "qos"), list(zip(STORIES, (2, 1, 2, 1), strict=True)))
def test_a_crash_at_some_points_loses_nothing_and_leaves_nothing_behind(story: str, qos: int) -> None:
    # The first of a kind, to which every life comes: how many follow differs.
    points = [
        (kind, number) for kind, number in points_of(story, qos) if number == 1 and kind.startswith(("SQLite", "MQTT"))
    ]
    assert check(story, qos, points[len(points) // 3 :: len(points) // 3][:FEW])


@pytest.mark.long
@pytest.mark.parametrize("qos", [1, 2])
@ALL_STORIES
def test_a_crash_at_any_point_loses_nothing_and_leaves_nothing_behind(story: str, qos: int) -> None:
    points = points_of(story, qos)
    reached = check(story, qos, points)
    print(f"{story}, QoS {qos}: {reached} of {len(points)} points reached")
    assert reached > len(points) // 2
