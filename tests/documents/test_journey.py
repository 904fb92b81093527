"""The journeys of a message and of a request, module by module, are the tables of the reference."""

import re
import statistics
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import amqtt_rest_bridge
from amqtt_rest_bridge.processes import bridge_calls
from tests.support.embedded_broker import Host, hosting
from tests.support.http_recorder import Answer, Recorder, echo
from tests.support.http_target import Seen

PACKAGE = Path(amqtt_rest_bridge.__file__).parent
ARCHITECTURE = (PACKAGE / "ARCHITECTURE.md").read_text()
MOST = 12
MOST_OF_ALL = 22
"""Modules that every message, or request, enters there and back, counted without exemption."""
DEEP = ("calls", "http_client", "http_server", "link", "placeholders")
# Called like the standard library, by any stage.
LEAVES = {"errors.py", "failures.py", "model.py", "topics.py"}
# amqtt's own connections and subscriptions, which are read and written while a message is on its way.
REPAIRS = (
    "acknowledged", "connections", "flooding", "forwarding", "leftovers", "resets", "retained", "shutdown", "stopping",
    "subscriptions", "wills",
)  # fmt: skip
BESIDE = {"broker/amqtt_broker.py", *(f"broker/repairs/{name}.py" for name in REPAIRS)}
HOOK = "broker/messages.py"
TARGET = "the HTTP server"

SENDING = """
DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true"
    ADD EVENT Send
        WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/a" WITH BODY "{{payload}}"
        WITH DESTINATION_TOPIC "out"
"""
SERVING = """
DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "0"
    ADD EVENT Take
        WITH METHOD "POST" WITH ENDPOINT "/take/{name}" WITH DESTINATION_TOPIC "out/{path.name}"
"""

Entry = tuple[str, str]
"""A thread and the module that it enters."""


class Journal:
    """Every entry into a module, while it is switched on; timers are not on anything's way."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.on = False
        self.modules: set[str] = set()
        """What the last exchange entered, without exemption."""

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        if self.on and event == "call" and (file := frame.f_code.co_filename).startswith(f"{PACKAGE}/"):
            thread = threading.current_thread().name
            if "timers" not in thread:
                self.modules.add(file)
                if (stage := stage_of(file)) is not None:
                    self.entries.append((thread, stage))

    def record(self, action: Callable[[], object]) -> list[Entry]:
        self.entries, self.modules, self.on = [], set(), True
        action()
        self.on = False
        return self.entries


def stage_of(file: str) -> str | None:
    """Return the module as the tables name it, None for what does not count."""
    module = file.removeprefix(f"{PACKAGE}/")
    folder = module.split("/")[0]
    return f"{folder}/" if folder in DEEP else None if module in LEAVES | BESIDE else module


def once(stages: Sequence[str]) -> list[str]:
    """Return each module once, in the order in which they are entered."""
    return list(dict.fromkeys(stages))


def common(journeys: Sequence[list[str]]) -> list[str]:
    """Return what all journeys pass, in the order of most.

    What runs beside one of them, such as a return of credits, is not on its way.
    """
    orders = [tuple(stage for stage in one if all(stage in other for other in journeys)) for one in journeys]
    return list(statistics.mode(orders))


def table(heading: str) -> list[str]:
    """Return the first column of a journey's table."""
    section = ARCHITECTURE.split(f"### {heading}\n", 1)[1].split("\n#", 1)[0]
    return re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    """A journal without the return of credits, which on a busy machine falls into every exchange."""
    monkeypatch.setattr(bridge_calls, "_CREDIT_SECONDS", 3600.0)
    journal = Journal()
    threading.setprofile(journal.profile)
    yield journal
    threading.setprofile(sys.getprofile())


@pytest.fixture
def sending(journal: Journal, target: Recorder) -> Iterator[Host]:
    with hosting(SENDING.format(url=target.url)) as host:
        yield host


@pytest.fixture
def serving(journal: Journal) -> Iterator[Host]:
    with hosting(SERVING) as host:
        yield host


def assert_is_table(heading: str, journeys: Sequence[list[str]]) -> None:
    assert common(journeys) == table(heading)
    assert len(table(heading)) <= MOST


def test_a_message_passes_the_modules_of_the_reference_there_and_back(
    journal: Journal, target: Recorder, sending: Host
) -> None:
    def answer(seen: Seen) -> Answer:
        journal.entries.append(("", TARGET))
        return echo(seen)

    def exchange() -> None:
        client.publish("in", b"1", qos=0)
        client.message()

    target.answer = answer
    client = sending.client("out")
    there, back, modules = [], [], []
    for _ in range(6):
        stages = [stage for _, stage in journal.record(exchange)]
        turn = stages.index(TARGET)
        there.append(once(stages[stages.index(HOOK) : turn]))
        back.append(once(stages[turn + 1 :]))
        modules.append(journal.modules)
    assert_is_table("A message on its way to the HTTP server", there[1:])
    assert_is_table("Its result on the way back", back[1:])
    assert len(set.intersection(*modules[1:])) <= MOST_OF_ALL


def test_a_request_passes_the_modules_of_the_reference_there_and_back(journal: Journal, serving: Host) -> None:
    def exchange() -> None:
        urllib.request.urlopen(f"http://127.0.0.1:{serving.http_port}/take/x", b"1", 10).close()
        client.message()

    client = serving.client("out/x")
    there, back, modules = [], [], []
    for _ in range(6):
        entries = journal.record(exchange)
        # The port's thread answers once the link has the publication, which goes its way on other threads.
        port = [stage for thread, stage in entries if thread.startswith("http-")]
        link = len(port) - port[::-1].index("link/")
        others = [stage for thread, stage in entries if not thread.startswith("http-")]
        there.append(once([*port[:link], *others[: others.index(HOOK) + 1]]))
        back.append(once(port[link:]))
        modules.append(journal.modules)
    assert_is_table("A request on its way to the broker", there[1:])
    assert_is_table("Its answer", back[1:])
    assert len(set.intersection(*modules[1:])) <= MOST_OF_ALL
