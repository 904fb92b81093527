"""The journeys of a message and of a request, module by module, are the tables of the architecture."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.documents import journey
from tests.documents.journey import Journal, modules
from tests.support.documents import codes, page, section
from tests.support.doors import DOORS, Hosting
from tests.support.http_recorder import Recorder

PAGE = page("amqtt_rest_bridge/ARCHITECTURE.md")
JOURNEYS = section(PAGE, "Three journeys")
MOST_STEPS = 10
MESSAGE, REQUEST, LOSSLESS = (
    "A message of client mode", "A request of server mode", "A lossless message over a kill",
)  # fmt: skip
COUNTED = re.search(
    r"a message enters (\d+) modules of ours with the plugin, .*? and (\d+) in a worker; a request (\d+) and (\d+)\.",
    " ".join(JOURNEYS.split()),
)
KILL = ""
"""The step without a module: the kill."""
INTAKES = {"mqtt/event_intake.py": "mqtt/intake.py"}


@pytest.fixture
def journal() -> Iterator[Journal]:
    with Journal() as journal:
        yield journal


def steps(heading: str) -> list[str]:
    """Return the module of each step of a journey; `KILL` for the kill."""
    cells = re.findall(r"^\| ([^|]*) \| ", section(JOURNEYS, heading).replace("| | ", "|  | "), re.MULTILINE)[1:]
    return [codes(cell)[0] if codes(cell) else KILL for cell in cells]


def assert_in_this_order(named: Sequence[str], entered: Sequence[str]) -> None:
    """Assert that the modules are entered one after the other, whatever is entered between them."""
    rest = iter(entered)
    assert [name for name in named if name not in rest] == []


def assert_named(entered: Sequence[str]) -> None:
    """Assert that the page names each of these modules."""
    named = codes(JOURNEYS)
    assert [one for one in entered if one not in named and f"{one.rpartition('/')[0]}/" not in named] == []


def of_worker(named: Sequence[str]) -> list[str]:
    """Return the steps of a journey in a worker, which has another broker."""
    return [INTAKES.get(name, name) for name in named if not name.startswith("broker/")]


def counted(number: int) -> int:
    assert COUNTED is not None
    return int(COUNTED[number])


@pytest.mark.parametrize("heading", [MESSAGE, REQUEST, LOSSLESS])
def test_a_journey_has_ten_steps_at_most(heading: str) -> None:
    assert 5 < len(steps(heading)) <= MOST_STEPS


@pytest.mark.parametrize("hosting", DOORS)
def test_a_message_passes_the_modules_of_the_page_there_and_back(
    journal: Journal, target: Recorder, hosting: Hosting, request: pytest.FixtureRequest
) -> None:
    is_worker, named = "worker" in request.node.name, steps(MESSAGE)
    entered = journey.messages(journal, hosting, target)
    for one in entered:
        assert_in_this_order(of_worker(named) if is_worker else named, one)
    print(*(found := modules(entered)), sep="\n")
    assert_named(found)
    assert len(found) == counted(2 if is_worker else 1)


@pytest.mark.parametrize("hosting", DOORS)
def test_a_request_passes_the_modules_of_the_page_there_and_back(
    journal: Journal, hosting: Hosting, request: pytest.FixtureRequest
) -> None:
    is_worker, named = "worker" in request.node.name, steps(REQUEST)
    entered = journey.requests(journal, hosting)
    for one in entered:
        assert_in_this_order(of_worker(named) if is_worker else named, one)
    print(*(found := modules(entered)), sep="\n")
    assert_named(found)
    assert len(found) == counted(4 if is_worker else 3)


def test_a_lossless_message_passes_the_modules_of_the_page_and_those_of_the_next_start(
    journal: Journal, target: Recorder, tmp_path: Path
) -> None:
    named = steps(LOSSLESS)
    kill = named.index(KILL)
    for one in journey.lossless_messages(journal, target, tmp_path / "spool.db"):
        assert_in_this_order([*named[:kill], *named[kill + 4 :]], one)
    assert_in_this_order(named[kill + 1 :], journey.lossless_message_of_before(journal, target, tmp_path / "before.db"))
