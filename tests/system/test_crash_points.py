"""A broker that ends behind any of its effects keeps what it promises of lossless messages when it starts again."""

import pytest

from tests.support import crashing
from tests.system.crash_stories import STORIES, begin, living, play, recover

FEW = 2
"""Points of a story in the usual suite."""

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
    faults, reached = [], 0
    for point in points:
        try:
            reached += crashes_at(story, qos, point)
        except AssertionError as error:
            faults.append(f"behind {point}: {error}")
    assert not faults, "\n\n".join(faults)
    return reached


@pytest.mark.parametrize(("story", "qos"), list(zip(STORIES, (2, 1, 2, 1), strict=True)))
def test_a_crash_at_some_points_loses_nothing_and_leaves_nothing_behind(story: str, qos: int) -> None:
    points = [point for point in points_of(story, qos) if point[0].startswith(("SQLite", "MQTT"))]
    assert check(story, qos, points[len(points) // 3 :: len(points) // 3][:FEW])


@pytest.mark.long
@pytest.mark.parametrize("qos", [1, 2])
@ALL_STORIES
def test_a_crash_at_any_point_loses_nothing_and_leaves_nothing_behind(story: str, qos: int) -> None:
    points = points_of(story, qos)
    assert check(story, qos, points) > len(points) // 2
