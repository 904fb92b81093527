"""The runs that are kept with their messages, bounded in number and bytes: failures for the most part. Event loop only.

Each route has its last 100 failures, its last 20 successes and its last 20 skipped runs. If all runs together are too
large, the route with the most bytes loses its oldest run, so no route pushes out the runs of others.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from amqtt_rest_bridge.admin.evidence import MASKED_BYTES, Evidence
from amqtt_rest_bridge.admin.problems import Problems
from amqtt_rest_bridge.admin.runs import Run, outcome_of
from amqtt_rest_bridge.engine.needs import Outcome
from amqtt_rest_bridge.lot.model import Message, MessageProperties
from amqtt_rest_bridge.times import rfc3339

log = logging.getLogger(__name__)

MOST_BYTES: Final = 16 << 20
MOST_FAILURES: Final = 100
MOST_OTHERS: Final = 20
_RUN_BYTES: Final = 1280  # what a run takes beside what is counted
_PAIR_BYTES: Final = 160  # a header or user property beside its letters, of which a peer may send many that are empty
_TRY_BYTES: Final = 200
_LOG_SECONDS: Final = 60.0  # between two warnings about the same route


class KeptRun(Struct, frozen=True, array_like=True):
    """A run with its message; `payload` is None if it is not kept, `evidence` is None if the message was refused.

    `timestamp` is when the broker received the message. Its `properties` are kept for a retry, and never shown.
    """

    run: Run
    topic: str
    timestamp: float
    payload: bytes | None
    evidence: Evidence | None
    properties: MessageProperties | None = None

    @property
    def size(self) -> int:
        """Return about how many bytes it takes."""
        run, evidence, pairs = self.run, self.evidence, list[tuple[str, str]]()
        size = _RUN_BYTES + len(self.payload or b"") + len(self.topic) + len(run.topic or "") + len(run.url or "")
        size += len(run.message or "")
        if self.properties is not None:
            pairs += self.properties.user
            size += len(self.properties.correlation or b"")
        if evidence is not None:
            response = evidence.response
            for body in (evidence.payload, evidence.body, None if response is None else response.body):
                size += 0 if body is None else len(body.data)
            pairs += evidence.headers if response is None else [*evidence.headers, *response.headers]
            size += len(evidence.url or "") + _TRY_BYTES * (len(evidence.attempts) + len(run.attempts))
        return size + sum(len(name) + len(value) for name, value in pairs) + _PAIR_BYTES * len(pairs)

    @property
    def outcome(self) -> Outcome:
        """Return how the run has ended; a refused one counts as a failure."""
        outcome = outcome_of(self.run.kind, self.run.code)
        return Outcome.FAILED if outcome is Outcome.REFUSED else outcome

    @property
    def is_failure(self) -> bool:
        """Return whether its message may be sent again."""
        return self.outcome is Outcome.FAILED

    @property
    def unmasked_payload(self) -> bytes | None:
        """Return the first bytes of its payload, not masked; None if `evidence` has the masked payload."""
        evidence, payload = self.evidence, self.payload
        is_open = evidence is None or (evidence.payload is None and not evidence.has_credentials)
        return payload[:MASKED_BYTES] if payload is not None and is_open else None


_Part = tuple[str, Outcome]
"""A route's name, and how its runs have ended."""


class KeepsCopies(Protocol):
    """What keeps a copy of each kept run, such as a file."""

    def put(self, name: str, run: KeptRun | None) -> None:
        """Keep the run with this id in place of the one before; None: keep it no more."""


class KeptRuns:
    """The kept runs of all routes, by id.

    Args:
        problems: Count the failures.
        copies: Keeps copies of the runs.
        first: The runs of the start, the oldest first.
        most_bytes: The bytes that all runs may take.
    """

    def __init__(
        self,
        problems: Problems | None = None,
        copies: KeepsCopies | None = None,
        first: Iterable[KeptRun] = (),
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._problems = problems
        self._copies = copies
        self._most = most_bytes
        self._runs: dict[str, KeptRun] = {}  # the oldest first
        self._parts: dict[_Part, dict[str, KeptRun]] = {}
        self._bytes = Counter[str]()  # by route
        self._warned: dict[str, float] = {}  # when, by route
        for run in first:
            self._keep(run)

    @property
    def bytes(self) -> int:
        """Return about how many bytes they take."""
        return self._bytes.total()

    def add(self, run: KeptRun) -> None:
        """Keep a run, as the newest one."""
        run = self._keep(run)
        if self._runs.get(run.run.id or "") is run:
            self._copy(run.run.id or "", run)

    def _keep(self, run: KeptRun) -> KeptRun:
        """Keep a run, without its payload if that is too large, drop others beyond the bounds; return what is kept."""
        name, route = run.run.id or "", run.run.route or ""
        if name in self._runs:
            self._remove(name)
        if (size := run.size) > self._most:
            run = replace(run, payload=None)
            size = run.size
        part = self._part(run)
        self._runs[name] = part[name] = run
        self._bytes[route] += size
        if len(part) > (MOST_FAILURES if run.is_failure else MOST_OTHERS):
            self._drop(next(iter(part)))
        while self.bytes > self._most:
            largest = max(self._bytes, key=self._bytes.__getitem__)
            oldest = [next(iter(own)) for (route, _), own in self._parts.items() if route == largest]
            self._drop(min(oldest, key=lambda one: self._runs[one].run.time))
        return run

    def begin_retry(self, name: str, run: str) -> None:
        """Note `run`, the newest one that sends the message of a kept run again; `end_retry` must follow."""
        ended = self._runs.get(run)
        self._set_retry(name, run, Outcome.RETRYING if ended is None else outcome_of(ended.run.kind, ended.run.code))

    def note_retry_outcome(self, name: str, outcome: str) -> Run | None:
        """Note how the retry of a kept run has ended.

        After a success no run of its message counts as a failure any more. Returns the one that did.
        """
        if outcome != Outcome.SUCCEEDED:
            self._set_retry(name, None, outcome)
            return None
        failures = self.failures_of(name)
        for run in failures:
            self._set_retry(run.id or "", None, outcome)
            self.end_retry(run.id or "")
        return failures[-1] if failures else None

    def failures_of(self, name: str) -> list[Run]:
        """Return the failures of the message of a run that has not been sent again with success, the oldest first.

        The message counts by the last of them.
        """
        kept = self._runs.get(name)
        if kept is None:
            return []
        while (before := self._runs.get(kept.run.retry_of or "")) is not None:
            kept = before
        names, alike = {kept.run.id}, [kept]
        for one in reversed(list(self.newest(kept.run.route))):
            if one.run.retry_of in names:
                names.add(one.run.id)
                alike.append(one)
        return [one.run for one in alike if one.run.retry_outcome != Outcome.SUCCEEDED and one.is_failure]

    def end_retry(self, name: str) -> None:
        """Report a run whose retry has ended as changed, so that its copy in the file has the outcome."""
        kept = self._runs.get(name)
        if kept is not None:
            if kept.run.retry_outcome == Outcome.RETRYING:  # it was given up
                self._set_retry(name, None, None)
            self._copy(name, self._runs[name])

    def put_away(self, name: str) -> list[Run]:
        """Keep the failures of a message no more that is not to be sent again, and return them."""
        failures = self.failures_of(name)
        for run in failures:
            self._remove(run.id or "")
            self._copy(run.id or "", None)
        if failures and self._problems is not None:
            self._problems.remove_failure(failures[-1])
        return failures

    def _set_retry(self, name: str, run: str | None, outcome: str | None) -> None:
        """Set the newest retry of a kept run, and how it went; a success stays."""
        kept = self._runs.get(name)
        if kept is None:
            return
        before = kept.run
        outcome = before.retry_outcome if before.retry_outcome == Outcome.SUCCEEDED else outcome
        kept = replace(kept, run=replace(before, retried_as=run or before.retried_as, retry_outcome=outcome))
        self._runs[name] = self._part(kept)[name] = kept

    def get(self, name: str) -> KeptRun | None:
        """Return the run with this id."""
        return self._runs.get(name)

    def newest(self, route: str | None = None) -> Iterator[KeptRun]:
        """Return all runs, or those of a route, the newest first; later changes do not matter."""
        if route is None:
            return reversed(list(self._runs.values()))
        own = [run for (name, _), part in self._parts.items() if name == route for run in part.values()]
        return iter(sorted(own, key=lambda run: run.run.time, reverse=True))

    def replayed_failure(self, route: str, event: str, message: Message) -> str | None:
        """Return the newest failure of an event with the message that was replayed, None if it is not kept.

        A failure payload has the time of its message in milliseconds; topic and time are those of one message.
        """
        found = (
            kept.run.id
            for kept in self.newest(route)
            if kept.is_failure
            and (kept.run.event, kept.topic) == (event, message.topic)
            and rfc3339(kept.timestamp) == rfc3339(message.timestamp)
            and kept.run.retry_outcome not in (Outcome.SUCCEEDED, Outcome.RETRYING)
        )
        return next(found, None)

    def unsent(self, route: str | None, code: str | None = None) -> list[KeptRun]:
        """Return the failures of a route, or all, that have not been sent again, the newest first."""
        return [
            run
            for run in self.newest(route)
            if run.is_failure and run.run.retried_as is None and code in (None, run.run.code)
        ]

    def open(self, route: str | None = None) -> list[KeptRun]:
        """Return the failures of a route, or all, that wait for a retry: unsent ones whose message is kept."""
        return [run for run in self.unsent(route) if run.payload is not None]

    def open_alike(self, route: str) -> Counter[tuple[int | None, str]]:
        """Return how many failures of a route wait for a retry, by status and code."""
        return Counter((run.run.status, run.run.code or "") for run in self.open(route))

    def unresolved(self) -> list[KeptRun]:
        """Return the failures whose messages have not been sent again with success, the oldest first."""
        return [run for run in self._runs.values() if run.is_failure and run.run.retry_outcome != Outcome.SUCCEEDED]

    def _part(self, run: KeptRun) -> dict[str, KeptRun]:
        """Return the kept runs of the same route and outcome."""
        return self._parts.setdefault((run.run.route or "", run.outcome), {})

    def _drop(self, name: str) -> None:
        """Keep a run no longer, since a bound was reached."""
        kept = self._runs[name]
        run = kept.run
        is_retried = run.retry_outcome == Outcome.RETRYING and self.failures_of(name)[-1] is run
        self._remove(name)
        self._copy(name, None)
        if self._problems is not None and is_retried:  # the retry counts by itself, should it fail
            self._problems.remove_failure(run)
        if kept.is_failure and kept.payload is not None and run.retried_as is None:
            self._note_pushed_out(run)

    def _note_pushed_out(self, run: Run) -> None:
        """Count an open failure that was dropped, and log that its route loses some."""
        route, now = run.route or "", time.monotonic()
        if self._problems is not None:
            self._problems.add_pushed_out(run)
        if now - self._warned.get(route, -_LOG_SECONDS) >= _LOG_SECONDS:
            self._warned[route] = now
            log.warning(
                "route %s: its oldest open failures are not kept any more: a route keeps its last %d at most",
                route, MOST_FAILURES,
            )  # fmt: skip

    def _copy(self, name: str, run: KeptRun | None) -> None:
        if self._copies is not None:
            self._copies.put(name, run)

    def _remove(self, name: str) -> None:
        run = self._runs.pop(name)
        route, part = run.run.route or "", self._part(run)
        del part[name]
        if not part:
            del self._parts[route, run.outcome]
        self._bytes[route] -= run.size
        if not self._bytes[route]:
            del self._bytes[route]
