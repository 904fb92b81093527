"""The last records of one route, gathered from every process. Any thread."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from amqtt_rest_bridge.link.admin_frames import FoundRecords, Record, WantRecords
from amqtt_rest_bridge.records.recorder import Recorder

RECENT = 50
FAILURES = 20


@dataclass(slots=True, eq=False)
class Finding:
    """What has been found of a route; `missing` is how many processes have still to answer, None before the broker."""

    wake: Callable[[], None]
    records: list[Record] = field(default_factory=list)
    failures: list[Record] = field(default_factory=list)
    kept: list[Record] = field(default_factory=list)
    missing: int | None = None

    @property
    def is_complete(self) -> bool:
        """Return whether every process has answered."""
        return self.missing == 0

    def recent(self) -> list[Record]:
        """Return the last records, the newest first."""
        return sorted(self.records, key=lambda record: record.time, reverse=True)[:RECENT]

    def last_failures(self) -> list[Record]:
        """Return the last failures, the newest first; those the broker kept where no process has them any more."""
        found = {record.id for record in self.failures if record.kind != "retry"}
        lost = [record for record in self.kept if record.id not in found]
        return sorted([*self.failures, *lost], key=lambda record: record.time, reverse=True)[:FAILURES]


class Findings:
    """Ask every process.

    Args:
        recorder: Of this process.
        send: Asks the broker, which asks the other processes.
    """

    def __init__(self, recorder: Recorder, send: Callable[[WantRecords], None]) -> None:
        self._recorder = recorder
        self._send = send
        self._lock = threading.Lock()
        self._open: dict[str, list[Finding]] = {}

    def begin(self, route: str, wake: Callable[[], None]) -> Finding:
        """Ask for the records of a route; `wake` is called when the last process has answered."""
        finding = Finding(wake)
        own = self._recorder.found(route)
        finding.records += own.records
        finding.failures += own.failures
        with self._lock:
            self._open.setdefault(route, []).append(finding)
            self._send(WantRecords(route))
        return finding

    def end(self, route: str, finding: Finding) -> None:
        """Wait no longer."""
        with self._lock:
            open_ones = [one for one in self._open.pop(route, []) if one is not finding]
            if open_ones:
                self._open[route] = open_ones

    def take(self, found: FoundRecords) -> None:
        """Take an answer; those of one route that are asked for at the same time share them."""
        with self._lock:
            findings = list(self._open.get(found.route, ()))
            for finding in findings:
                finding.records += found.records
                finding.failures += found.failures
                finding.kept += found.kept
                finding.missing = found.awaited if finding.missing is None else finding.missing - 1
        for finding in findings:
            if finding.is_complete:
                finding.wake()
