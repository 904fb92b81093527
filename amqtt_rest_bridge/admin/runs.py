"""Runs that are asked for: what every process has of them, and the broker's answer to retries. Any thread.

What each process records is in `records/`; what of it travels, in `link.admin_frames`.
"""

import itertools
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from amqtt_rest_bridge.link.admin_frames import (
    SHOWN_RUNS,
    FoundRuns,
    Record,
    Retried,
    RunDetail,
    RunQuery,
    WantRetry,
    WantRuns,
)

if TYPE_CHECKING:  # a worker needs none of what it imports
    from amqtt_rest_bridge.records.bridge_records import BridgeRecords


@dataclass(slots=True, eq=False)
class Runs:
    """What is found of a query; `awaited` is how many processes have to answer, None before the broker has."""

    query: RunQuery
    wake: Callable[[], None]
    found: list[Record]
    kept: list[Record] = field(default_factory=list)
    detail: RunDetail | None = None
    awaited: int | None = None
    answers: int = 0

    @property
    def is_complete(self) -> bool:
        """Return whether every process has answered."""
        return self.answers == self.awaited

    def newest(self) -> list[Record]:
        """Return the runs, the newest first; of those that the broker keeps, which process ran them does not matter."""
        kept = {record.id: record for record in self.kept}
        known = set()
        runs = []
        for record in self.found:
            own = kept.get(record.id)
            if own is not None and (own.kind == "retry" or record.kind != "retry"):
                known.add(record.id)
                url = own.url or record.url  # without what the message brought, too
                record = replace(record, url=url, retry_of=own.retry_of, retried_as=own.retried_as)  # noqa: PLW2901
            runs.append(record)
        runs += [record for name, record in kept.items() if name not in known]
        return sorted(runs, key=lambda record: record.time, reverse=True)[: self.query.limit]

    def recent(self) -> list[Record]:
        """Return the last runs of a route."""
        return [record for record in self.newest() if record.kind != "retry"][:SHOWN_RUNS]

    def newest_tries(self) -> list[Record]:
        """Return the runs, and of those that have not ended the newest try that failed."""
        shown: dict[str | None, Record] = {}
        for record in self.newest():
            if record.id not in shown:
                shown[record.id] = record
        return list(shown.values())


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
        self._open: dict[int, Runs] = {}
        self._retries: dict[int, tuple[Callable[[], None], list[Retried]]] = {}

    def begin(self, query: RunQuery, wake: Callable[[], None]) -> tuple[int, Runs]:
        """Ask for runs; `wake` is called when the last process has answered."""
        runs = Runs(query, wake, self._records.find(query))
        with self._lock:
            number = next(self._numbers)
            self._open[number] = runs
        self._send(WantRuns(number, query))
        return number, runs

    def retry(self, wanted: WantRetry, wake: Callable[[], None]) -> tuple[int, list[Retried]]:
        """Ask for retries; the list holds the broker's answer once `wake` is called."""
        answer: list[Retried] = []
        with self._lock:
            number = next(self._numbers)
            self._retries[number] = wake, answer
        self._send(replace(wanted, number=number))
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
