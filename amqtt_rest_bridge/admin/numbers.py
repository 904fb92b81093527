"""The broker's numbers, asked for when a caller wants them. Any thread.

One question is on its way at a time; callers meanwhile share its answer, so that many who look cost the broker no
more than one. An answer comes in parts. They have the number of their question: a question that is asked again may be
answered twice, and parts of two answers must never pass for a whole one.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.link.admin_frames import BrokerNumbers, NumbersPart, RouteNumbers, WantNumbers

REMIND_SECONDS: Final = 0.5
SAMPLE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the broker counted at `at` (monotonic seconds); the routes by name, in order."""

    at: float
    routes: dict[str, RouteNumbers]
    broker: BrokerNumbers


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
