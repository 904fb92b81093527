"""The playground of both sites: a trial, its result, and the process between them. Any thread.

A stranger's text is judged by `amqtt_rest_bridge.tools.playground` in a process of its own, which has nothing of this
one's environment, little priority, and limits on processor time and memory: however long a text takes, it delays no
call, no page and no message.
"""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

log = logging.getLogger(__name__)

FIRST_ROUTE: Final = """\
DEFINE ROUTE First WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH ENABLE_SERVER "true"
        WITH SERVER_PORT '8080'
    ADD EVENT Receive
        WITH METHOD "POST"
        WITH ENDPOINT "/first"
        WITH DESTINATION_TOPIC "first/received"
"""
"""The definition to start from: in the playground, and on the page of a bridge without routes."""
CPU_SECONDS: Final = 5
"""Of the process that judges a definition."""
WALL_SECONDS: Final = 20.0
"""From the start of that process to its end; then it is killed."""
MOST_CHARACTERS: Final = 262_144
"""Of a definition; the other fields have a quarter of it."""
_FIELDS: Final = 20  # of a form
_MODULE: Final = "amqtt_rest_bridge.tools.playground"


class Trial(msgspec.Struct, frozen=True):
    """A definition to try, and with what; the names are those of the fields of the form.

    Args:
        definition: Text of the route language.
        topic: Of the message; if empty, each event gets a topic that it listens to.
        payload: Of the message, or the body of the request.
        response: The body with which the HTTP server answers.
        request: A request of server mode, a line such as `POST /hook` and its headers; empty: one for each endpoint.
    """

    definition: str = ""
    topic: str = ""
    payload: str = "{}"
    response: str = "{}"
    request: str = ""


class FaultExcerpt(msgspec.Struct, frozen=True):
    """A fault with its place, and the text of its line before, at and behind this place."""

    line: int
    column: int
    severity: str
    message: str
    hint: str | None
    before: str
    at: str
    behind: str


class Exchange(msgspec.Struct, frozen=True):
    """What one event does: its request as text, and what follows; `is_taken` is whether it is of server mode."""

    route: str
    event: str
    is_taken: bool
    topic: str
    request: str
    outcome: str
    published: str


class TrialResult(msgspec.Struct, frozen=True):
    """The result of a trial; `trouble` says why there is none.

    `more` counts the faults that are not shown, `substitutes` are the values of variables and secrets, `ways` those of
    `admin.flow.Drawing` as JSON.
    """

    faults: Sequence[FaultExcerpt] = ()
    more: str = ""
    routes: Sequence[str] = ()
    ways: Sequence[dict[str, Any]] = ()
    exchanges: Sequence[Exchange] = ()
    substitutes: Sequence[tuple[str, str]] = ()
    note: str = ""
    trouble: str = ""
    is_busy: bool = False


def trial_of(form: bytes) -> Trial:
    """Read the form of the page; what is missing has its default."""
    try:
        given = parse_qs(form.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_FIELDS)
    except ValueError:  # more fields
        given = {}
    names = Trial.__struct_fields__
    return Trial(**{name: given[name][-1].replace("\r\n", "\n") for name in names if name in given})


class Playground:
    """Starts the process of each trial, `at_once` of them at a time."""

    def __init__(self, at_once: int = 2) -> None:
        self._room = threading.BoundedSemaphore(at_once)

    def run(self, trial: Trial) -> TrialResult:
        """Return the result of a trial; blocks for half a second, `WALL_SECONDS` at most."""
        if len(trial.definition) > MOST_CHARACTERS:
            most = f"{MOST_CHARACTERS // 1024} Ki characters"
            return TrialResult(trouble=f"The definition is longer than {most}. `rest-bridge check` reads larger ones.")
        if not self._room.acquire(blocking=False):
            return TrialResult(
                trouble="Others try definitions at this moment. Try again in a few seconds.", is_busy=True
            )
        try:
            return _run_process(trial)
        finally:
            self._room.release()


def _run_process(trial: Trial) -> TrialResult:
    """Run a trial in a process of its own, and return its result, or why there is none."""
    # Of the environment it gets only where to import from: a definition must not read the broker's variables.
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONUTF8": "1"}
    try:
        ended = subprocess.run(  # noqa: S603  # our own module in our own interpreter
            [sys.executable, "-P", "-m", _MODULE],
            input=msgspec.json.encode(trial),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=WALL_SECONDS,
            check=False,
        )
        if ended.returncode == 0:
            return msgspec.json.decode(ended.stdout, type=TrialResult)
        reason = f"status {ended.returncode}"
    except subprocess.TimeoutExpired:
        log.info("the process of a playground was ended after %s s", WALL_SECONDS)
        return TrialResult(
            trouble="This machine has much to do, and has not judged the definition in time. Try again later."
        )
    except OSError as error:
        reason = type(error).__name__
    log.info("the process of a playground ended with %s", reason)
    limit = f"The definition could not be judged within {CPU_SECONDS} s of processor time"
    return TrialResult(trouble=f"{limit}. `rest-bridge check` takes the time that it needs.")
