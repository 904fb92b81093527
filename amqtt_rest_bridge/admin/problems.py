"""Problems: messages and requests that failed alike, counted by code, target and status. Event loop only.

The recorder counts each as it fails, so that the numbers are exact even if few failures are kept.

A message counts once, from its first failed try. While another try follows, its call is `retrying`. If a later try
succeeds, the message is subtracted. If a later try or a retry fails in another way, the message moves to that problem.
So the memory is bounded: 200 problems, and the calls that are tried again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.admin.runs import MOST_NAMED, Problem, Run, is_request
from amqtt_rest_bridge.lot.masking import masker_of
from amqtt_rest_bridge.lot.model import Route
from amqtt_rest_bridge.lot.route_set import shown_endpoint

LISTED_SECONDS: Final = 600.0
"""How long a problem is listed after its last message; longer while one of its routes has had no success since.

If all its messages were sent again with success, it is listed as resolved for this time after the last of them. If all
of them succeeded with a later try of their calls, it is not listed.
"""
PASSED_SECONDS: Final = 60.0
"""How long after its last message a problem counts as one that has passed, if its routes have had successes since."""
_MOST_PROBLEMS: Final = 200  # beyond them, the problem with the oldest last message is forgotten
_MOST_ROUTES: Final = 1000
_UNSENT: Final = frozenset(
    row.code
    for row in (
        catalogue.PLACEHOLDER_UNRESOLVED,
        catalogue.INVALID_VALUE,
        catalogue.SCHEMA_MISMATCH,
        catalogue.TOO_LARGE,
    )
)
"""Codes of messages that no request was made of: their cause and hint are those of an event, whatever its server is."""
_NONE: Final[Mapping[Any, int]] = MappingProxyType({})

Kind = tuple[str, str, int | None]
"""Code, target, status."""


@dataclass(slots=True, eq=False)
class _CountedProblem:
    """A problem as it is counted."""

    kind: Kind
    first: float
    last: float
    count: int = 0
    routes: dict[str, int] = field(default_factory=dict)  # with their parts of `count`, in order of arrival
    message: str | None = None
    hint: str | None = None
    run: str | None = None
    sent_again: int = 0
    sent_at: float = 0.0
    pushed_out: int = 0
    retrying: dict[int, Run] = field(default_factory=dict)  # the last failed tries, by call; the newest at the end

    def add(self, route: str | None, change: int) -> None:
        """Count messages of a route more, or fewer."""
        self.count += change
        number = self.routes.get(route or "", 0) + change
        if number <= 0:
            self.routes.pop(route or "", None)
        elif route in self.routes or len(self.routes) < _MOST_ROUTES:
            self.routes[route or ""] = number

    @property
    def is_resolved(self) -> bool:
        """Return whether all its messages were sent again with success."""
        return 0 < self.sent_again >= self.count

    @property
    def newest_run(self) -> str | None:
        """Return the run that ended last, whose page offers a retry; if none has ended, the last failed try."""
        return self.run or next((run.id for run in reversed(self.retrying.values())), None)


class Problems:
    """The problems of all routes."""

    def __init__(self) -> None:
        self._targets: dict[tuple[str, str], str] = {}  # by route and event
        self._counted: dict[Kind, _CountedProblem] = {}
        self.retrying: dict[int, _CountedProblem] = {}
        """Calls that are tried again, by their number."""

    def use_routes(self, routes: Iterable[Route]) -> None:
        """Count the problems of these routes from now on, and forget those of others."""
        self._targets = {}
        names = set()
        for route in routes:
            names.add(route.name)
            mask = masker_of(route).address
            server = mask(route.config.server)
            self._targets |= {(route.name, event.name): server for event in route.client_events}
            for event in route.server_events:
                endpoint = mask(shown_endpoint(event.method, route.config.server_port, event.endpoint))
                self._targets[route.name, event.name] = endpoint
        for kind, counted in list(self._counted.items()):
            counted.routes = {name: number for name, number in counted.routes.items() if name in names}
            if not counted.routes:
                del self._counted[kind]

    def add_failure(self, run: Run) -> None:
        """Count a message that has failed or was refused, or a request that was answered with an error."""
        self._add(run, 1, run.id)

    def add_failed_try(self, call: int, run: Run) -> None:
        """Count a message whose call will be tried again; `run` is the try that has failed."""
        before, counted = self.retrying.get(call), self._add(run, 0, None)
        if counted is not before:
            self.end_tries(call)
        if counted is not None:
            counted.add(run.route, counted is not before)
            counted.retrying.pop(call, None)
            counted.retrying[call] = run
            self.retrying[call] = counted

    def end_tries(self, call: int) -> None:
        """Subtract the message of a call that is not tried again. If the call has failed, call `add_failure` before."""
        counted = self.retrying.pop(call, None)
        if counted is not None:
            self._subtract(counted, counted.retrying.pop(call))

    def add_success(self, failure: Run, now: float) -> None:
        """Count a failure whose message was sent again with success."""
        if (counted := self._problem_of(failure)) is not None:
            counted.sent_again += 1
            counted.sent_at = now

    def remove_failure(self, failure: Run) -> None:
        """Subtract a failure whose message counts by a newer run, or no longer."""
        if (counted := self._problem_of(failure)) is not None:
            self._subtract(counted, failure)

    def add_pushed_out(self, failure: Run) -> None:
        """Count an open failure that is kept no longer, since a bound was reached."""
        if (counted := self._problem_of(failure)) is not None:
            counted.pushed_out += 1

    def _subtract(self, counted: _CountedProblem, failure: Run) -> None:
        counted.add(failure.route, -1)
        if counted.count <= 0 and self._counted.get(counted.kind) is counted:
            del self._counted[counted.kind]

    def _problem_of(self, failure: Run) -> _CountedProblem | None:
        """Return the problem that a failure was counted in, None if it has ended since."""
        counted = self._counted.get(self.kind_of(failure))
        return counted if counted is not None and failure.time >= counted.first else None

    def kind_of(self, failure: Run) -> Kind:
        """Return the code, target and status that a failure is counted by."""
        return failure.code or "", self._target_of(failure) or "", failure.status

    def _target_of(self, failure: Run) -> str | None:
        """Return the server or endpoint of a failure, or its event if no request was sent; None if that is gone."""
        target = self._targets.get((failure.route or "", failure.event or ""))
        if target is None or failure.code not in _UNSENT or is_request(failure.kind, failure.status):
            return target
        return target_of_event(failure.route, failure.event)

    def open_tries(self) -> Iterator[Run]:
        """Iterate over the last failed tries of calls that have not ended."""
        return (run for counted in self._counted.values() for run in counted.retrying.values())

    def add_error(self, route: str, code: str, message: str, now: float) -> None:
        """Count an error that concerns a whole route, not one of its messages."""
        event = next((event for name, event in self._targets if name == route), None)
        if event is not None:
            hint = hint_of(code, None)
            self._add(Run(now, "call", None, route, event, code=code, message=message, hint=hint), 1, None)

    def present(
        self, now: float, last_successes: Mapping[str, float | None], waiting: Mapping[Kind, int] = _NONE
    ) -> list[Problem]:
        """Return the listed problems: open ones before resolved ones, those with most messages first.

        `last_successes` by route is Unix time, None before one. `waiting` counts the failures that wait for a retry.
        """
        for kind, counted in list(self._counted.items()):
            counted.last = min(counted.last, now)  # after the clock was set back, later successes count
            if counted.is_resolved and now - counted.sent_at >= LISTED_SECONDS:
                del self._counted[kind]
        found = [
            Problem(
                *kind,
                routes=list(counted.routes)[:MOST_NAMED],
                counts=list(counted.routes.values())[:MOST_NAMED],
                count=counted.count,
                first=counted.first,
                last=counted.last,
                message=counted.message,
                hint=counted.hint,
                run=counted.newest_run,
                retrying=len(counted.retrying),
                state="resolved" if counted.is_resolved else "open",
                sent_again=counted.sent_again,
                waiting=waiting.get(kind, 0),
                pushed_out=counted.pushed_out,
                passed=not counted.retrying
                and now - counted.last >= PASSED_SECONDS
                and not self._lasts(counted, last_successes),
            )
            for kind, counted in self._counted.items()
            if counted.retrying
            or counted.is_resolved
            or now - counted.last < LISTED_SECONDS
            or self._lasts(counted, last_successes)
        ]
        return sorted(found, key=lambda one: one.place)

    def _lasts(self, counted: _CountedProblem, last_successes: Mapping[str, float | None]) -> bool:
        """Return whether one of its routes has had no success since its last message."""
        return any((last_successes.get(route) or 0.0) < counted.last for route in counted.routes)

    def _add(self, run: Run, count: int, ended: str | None) -> _CountedProblem | None:
        """Add a run to its problem, and return the problem; None if its event was removed.

        `count` is 0 for a try that another one follows, `ended` the id of a run that has ended.
        """
        target = self._target_of(run)
        if target is None or run.code is None:
            return None
        kind = run.code, target, run.status
        counted = self._counted.get(kind)
        if counted is None or counted.is_resolved:  # a failure after that begins a new problem
            if len(self._counted) >= _MOST_PROBLEMS:
                del self._counted[min(self._counted, key=lambda one: self._counted[one].last)]
            counted = self._counted[kind] = _CountedProblem(kind, run.time, run.time)
        counted.add(run.route, count)
        counted.last = run.time
        counted.message, counted.hint, counted.run = run.message, run.hint, ended or counted.run
        return counted


def target_of_event(route: str | None, event: str | None) -> str:
    """Return the target of a problem of an event that sent no request."""
    return f"route {route}, event {event}"


def hint_of(code: str | None, status: int | None) -> str | None:
    """Return what an operator does about failures or answers with a code, None for a code that is not known."""
    if code == catalogue.HTTP_STATUS.code and status is not None and status in catalogue.STATUSES:
        return catalogue.STATUSES[status].hint
    failure, answer = catalogue.FAILURES.get(code or ""), catalogue.ANSWERS.get(code or "")
    if answer is not None and answer.for_operator is not None:
        return answer.for_operator
    row = failure or answer
    return None if row is None else row.hint
