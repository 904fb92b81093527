"""Questions of the process that serves the admin port to the broker and the other bridge processes. Any thread.

One question for the numbers is on its way at a time; callers meanwhile share its answer, so that many who look cost the
broker no more than one. An answer comes in parts. They have the number of their question: a question that is asked
again may be answered twice, and parts of two answers must never pass for a whole one.
"""

import itertools
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from amqtt_rest_bridge.admin.numbers import Numbers, RouteNumbers
from amqtt_rest_bridge.admin.queries import RetryQuery
from amqtt_rest_bridge.admin.runs import Runs
from amqtt_rest_bridge.link.admin_frames import FoundRuns, NumbersPart, Retried, WantNumbers, WantRetry, WantRuns
from amqtt_rest_bridge.records.values import RunQuery

if TYPE_CHECKING:
    from amqtt_rest_bridge.records.bridge_records import BridgeRecords

REMIND_SECONDS: Final = 0.5


class NumbersCache:
    """Ask the broker by `send`."""

    def __init__(self, send: Callable[[WantNumbers], None], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._asked: bool | None = None  # what is on its way: with statuses, without, or nothing
        self._asked_at = 0.0
        self._next: bool | None = None  # to be asked for after that
        self._number = 0  # of the question
        self._parts: dict[str, RouteNumbers] = {}
        self._wakes: list[tuple[Callable[[], None], bool]] = []  # and whether with statuses
        self._latest: Numbers | None = None
        self._latest_with_statuses: Numbers | None = None

    @property
    def newest(self) -> Numbers | None:
        """Return the last numbers, None before there are any."""
        return self._latest

    def fresh(self, since: float, *, statuses: bool) -> Numbers | None:
        """Return numbers that arrived at `since` (monotonic seconds) or later; None without any."""
        latest = self._latest_with_statuses if statuses else self._latest
        return latest if latest is not None and latest.at >= since else None

    def ask(self, wake: Callable[[], None], *, statuses: bool) -> None:
        """Ask the broker; `wake` is called once it has answered, on the link's reader."""
        with self._lock:
            self._wakes.append((wake, statuses))
            if self._asked is None:
                self._send_question(statuses)
            elif statuses and not self._asked:
                self._next = True

    def remind(self) -> None:
        """Ask again when the answer takes long: the question, or a part of the answer, may be lost."""
        with self._lock:
            if self._asked is not None and self._monotonic() - self._asked_at > REMIND_SECONDS:
                self._asked_at = self._monotonic()
                self._send(WantNumbers(self._number, self._asked))

    def take(self, part: NumbersPart) -> None:
        """Take a part of the answer."""
        with self._lock:
            if part.number != self._number or self._asked is None:  # it has been answered
                return
            self._parts.update((route.name, route) for route in part.routes)
            if part.broker is None:
                return
            routes = dict(sorted(self._parts.items(), key=lambda item: item[0].lower()))
            self._latest = Numbers(self._monotonic(), routes, part.broker)
            if self._asked:
                self._latest_with_statuses = self._latest
            answered = [wake for wake, statuses in self._wakes if self._asked or not statuses]
            self._wakes = [] if self._asked else [entry for entry in self._wakes if entry[1]]
            self._asked, self._next = self._next, None
            if self._asked is not None:
                self._send_question(self._asked)
        for wake in answered:
            wake()

    def _send_question(self, statuses: bool) -> None:
        self._asked, self._asked_at, self._parts = statuses, self._monotonic(), {}
        self._number += 1
        self._send(WantNumbers(self._number, statuses))


@dataclass(slots=True, eq=False)
class AskedRuns(Runs):
    """What is found of a query; `awaited` is how many processes have to answer, None before the broker has."""

    wake: Callable[[], None] = lambda: None
    awaited: int | None = None
    answers: int = 0

    @property
    def is_complete(self) -> bool:
        """Return whether every process has answered."""
        return self.answers == self.awaited


class RunQuestions:
    """Ask every process for runs, and the broker to send messages again.

    Args:
        records: Of this process.
        send: Asks the broker, which asks the other processes.
    """

    def __init__(self, records: "BridgeRecords", send: Callable[[WantRuns | WantRetry], None]) -> None:
        self._records = records
        self._send = send
        self._lock = threading.Lock()
        self._numbers = itertools.count(secrets.randbits(40))  # not those of a process that served the port before
        self._open: dict[int, AskedRuns] = {}
        self._retries: dict[int, tuple[Callable[[], None], list[Retried]]] = {}

    def begin(self, query: RunQuery, wake: Callable[[], None]) -> tuple[int, AskedRuns]:
        """Ask for runs; `wake` is called when the last process has answered."""
        runs = AskedRuns(query, self._records.find(query), wake=wake)
        with self._lock:
            number = next(self._numbers)
            self._open[number] = runs
        self._send(WantRuns(number, query))
        return number, runs

    def retry(self, wanted: RetryQuery, wake: Callable[[], None]) -> tuple[int, list[Retried]]:
        """Ask for retries; the list holds the broker's answer once `wake` is called."""
        answer: list[Retried] = []
        with self._lock:
            number = next(self._numbers)
            self._retries[number] = wake, answer
        self._send(WantRetry(number, wanted.ids, wanted.route, wanted.code))
        return number, answer

    def end(self, number: int) -> None:
        """Wait no longer."""
        with self._lock:
            self._open.pop(number, None)
            self._retries.pop(number, None)

    def take(self, frame: FoundRuns | Retried) -> None:
        """Take an answer."""
        with self._lock:
            if isinstance(frame, Retried):
                wake, answer = self._retries.get(frame.number, (lambda: None, []))
                answer.append(frame)
            else:
                wake = self._take_runs(frame)
        wake()

    def _take_runs(self, found: FoundRuns) -> Callable[[], None]:
        runs = self._open.get(found.number)
        if runs is None:
            return lambda: None
        if found.awaited is None:
            runs.found += found.runs
            runs.answers += 1
        else:
            runs.kept, runs.detail, runs.awaited = found.runs, found.detail, found.awaited
        return runs.wake if runs.is_complete else lambda: None
