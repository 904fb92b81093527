"""Retries: the messages of kept failures are sent again, each through its event only. Event loop only.

A retry is a new call by the definition in use now, admitted like any other: it takes its place in the route's queue and
keeps to its RATE_LIMIT. The retry of a request publishes what the request has published, or would have. A failure has
one retry at a time.

A failure is marked as sent again in its file only once its retry has ended. So a retry that a stop or a kill
cuts off can be repeated after the next start; its message may then be sent twice.
"""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.admin.kept_runs import KeptRun
from amqtt_rest_bridge.admin.queries import RetryQuery
from amqtt_rest_bridge.admin.recorder import RunRecorder
from amqtt_rest_bridge.admin.runs import MOST_RUNS, is_request
from amqtt_rest_bridge.catalogue import BROKER_UNAVAILABLE
from amqtt_rest_bridge.engine.client_mode import ClientMode
from amqtt_rest_bridge.engine.needs import Outcome, Publishes, RequestRun
from amqtt_rest_bridge.engine.outcome import Outcomes
from amqtt_rest_bridge.engine.schedule import OwnDelivery
from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.http.exchange import Refusal, Request, Response, refuse, refused
from amqtt_rest_bridge.lot.model import Message, Publication, Route, RunIds, ServerEvent

_AT_ONCE: Final = 10  # in one iteration of the loop
_MOST_UNDER_WAY: Final = MOST_RUNS
_MOST_ROUNDS: Final = 32  # whose ends are known
_UNKNOWN: Final = "unknown"  # the end of a retry whose event was removed meanwhile
_NOT_PUBLISHED: Final[Refusal] = refuse(
    BROKER_UNAVAILABLE, "The MQTT broker is away or has not acknowledged the message"
)


# Why a failure is not retried: its message is not kept, its event is gone, or it is being retried.
NOT_KEPT: Final = "not_kept"
ROUTE_GONE: Final = "route_gone"
RETRY_RUNS: Final = "retry_runs"


@dataclass(frozen=True, slots=True)
class Retried:
    """Retries that were asked for.

    `started` are ids of new runs with those of the failures whose messages they send again; `refused` are ids of
    failures that are not retried, each with the code and the sentence that says why.
    """

    started: list[tuple[str, str]]
    refused: list[tuple[str, str, str]]


class _RefusedError(BridgeError):
    """A failure is not retried; the message says why."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


@dataclass(slots=True, eq=False)
class _Retry(OwnDelivery):
    """The delivery of a message that is sent again: its last release ends the retry."""

    retries: "Retries"
    name: str  # of the failure

    def release(self) -> None:
        OwnDelivery.release(self)
        if not self.holds:
            self.retries.end(self.name)


class Retries:
    """Retries kept failures.

    Args:
        recorder: Keeps the failures.
        client_mode: Calls the messages of failed calls again.
        publisher: Publishes the messages of failed requests again.
        outcomes: Notes how the retries of requests end.
        runs: Makes the ids of calls.
    """

    def __init__(
        self,
        recorder: RunRecorder,
        client_mode: ClientMode,
        publisher: Publishes,
        outcomes: Outcomes,
        runs: RunIds,
    ) -> None:
        self._recorder = recorder
        self._client_mode = client_mode
        self._publisher = publisher
        self._outcomes = outcomes
        self._ids = runs
        self.routes: Iterable[Route] = ()
        """The present routes; replaced, never changed."""
        self._under_way: dict[str, str] = {}  # the new runs, by the ids of their failures
        self._ends: dict[str, str] = {}  # how new runs have ended
        self._rounds: dict[str, list[str]] = {}  # the new runs that were asked for together, by the first of them
        self._tasks: set[asyncio.Task[None]] = set()

    async def retry(self, wanted: RetryQuery) -> Retried:
        """Begin the retries that are asked for; return once all have begun, or been refused."""
        self._recorder.keep_pending()
        is_search, kept, done = wanted.ids is None, self._recorder.kept, Retried([], [])
        if wanted.ids is None:  # the oldest first
            kind_of = self._recorder.problems.kind_of
            alike = [
                run.run.id or ""
                for run in kept.unsent(wanted.route, wanted.code)
                if wanted.status in (None, run.run.status) and wanted.target in (None, kind_of(run.run)[1])
            ]
            names = alike[MOST_RUNS - 1 :: -1]
        else:
            names = list(dict.fromkeys(wanted.ids))[:MOST_RUNS]
        # Failures that were asked for by id are held: retries that fail at once may push them out before their turn.
        held = {} if is_search else {name: kept.get(name) for name in names}
        for number, name in enumerate(names, 1):
            run = kept.get(name) or held.get(name)
            if is_search and run is not None and run.run.retried_as is not None:  # meanwhile, by another one
                continue
            try:
                done.started.append((self._retry(name, run), name))
            except _RefusedError as refused:
                done.refused.append((name, refused.code, str(refused)))
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        if done.started:
            self._rounds[done.started[0][0]] = [started for started, _ in done.started]
        if len(self._rounds) > _MOST_ROUNDS:
            for gone in self._rounds.pop(next(iter(self._rounds))):
                del self._ends[gone]
        return done

    def ends(self, first: str) -> Counter[str]:
        """Return how many retries have ended how that were asked for together; `first` is the first new run."""
        return Counter(self._ends[run] for run in self._rounds.get(first, ()))

    def _retry(self, name: str, kept: KeptRun | None) -> str:
        """Send a message again and return the id of the new run; raises `_RefusedError`."""
        if kept is None and self._recorder.is_retrying(name):
            raise _RefusedError(RETRY_RUNS, "it is still being retried; it can be sent again once it has ended")
        if kept is None or not kept.is_failure:
            raise _RefusedError(NOT_KEPT, "no failure of a message is kept with this id")
        if kept.payload is None and not kept.topic:
            raise _RefusedError(NOT_KEPT, "the request of this run failed before it had a message")
        if kept.payload is None:
            raise _RefusedError(NOT_KEPT, "the message of this run is not kept: see the setting capture")
        if name in self._under_way:
            raise _RefusedError(RETRY_RUNS, "a retry of this failure has not ended yet")
        if len(self._under_way) >= _MOST_UNDER_WAY:
            raise _RefusedError(RETRY_RUNS, f"{_MOST_UNDER_WAY} retries have not ended yet")
        run = kept.run
        self._under_way[name] = ""
        if is_request(run.kind, run.status):
            started = self._request_again(name, kept)
        else:
            event = run.route or "", run.event or ""
            message = Message(kept.topic, kept.payload, kept.timestamp, kept.properties, time.time())
            retry = _Retry(self, name)
            retry.hold()
            try:
                call = self._client_mode.run_event(event, message, retry, name)
            finally:
                asyncio.get_running_loop().call_soon(retry.release)  # after `begin_retry`
            started = None if call is None else self._ids.of(call, *event)
        if started is None:
            del self._under_way[name]
            raise _RefusedError(ROUTE_GONE, f"route {run.route} has no event {run.event} any more")
        self._under_way[name], self._ends[started] = started, Outcome.RETRYING
        self._recorder.kept.begin_retry(name, started)
        return started

    def _request_again(self, name: str, kept: KeptRun) -> str | None:
        """Publish the message of a request again and return the id of the new run, None if its event is gone.

        No caller waits for a reply any more: the run has succeeded once the broker has the message. It counts
        like a request that was answered with RESPONSE_STATUS.
        """
        names = kept.run.route, kept.run.event
        found = (
            (route, event)
            for route in self.routes
            for event in route.server_events
            if (route.name, event.name) == names and event.destination_topic is not None
        )
        if (present := next(found, None)) is None:
            return None
        started = str(uuid.uuid4())
        task = asyncio.create_task(self._publish_again(name, kept, started, *present))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return started

    async def _publish_again(self, name: str, kept: KeptRun, started: str, route: Route, event: ServerEvent) -> None:
        publication = Publication(kept.topic, kept.payload or b"", event.retain, kept.properties, event.qos)
        outcome, refusal = Outcome.SUCCEEDED, None
        try:
            await self._publisher.publish(publication, hops=1, route=route.name, wait=False)
        except BridgeError:
            outcome, refusal = Outcome.FAILED, _NOT_PUBLISHED
        request = Request(started, kept.run.method or event.method.value, kept.run.url or "", "", {})
        answer = Response(f"{event.response_status} OK") if refusal is None else refused(refusal)
        self._outcomes.note_request(RequestRun(
            time.time(), outcome, 0, route, event, request, answer,
            refusal=refusal, publication=publication, retry_of=name, label=f"the message of {name} again",
        ))  # fmt: skip
        self.end(name)

    def put_away(self, ids: Iterable[str]) -> tuple[list[str], list[tuple[str, str, str]]]:
        """Keep and count failures no more that are not to be retried.

        Return the ids of those that were put away, and why others were not, as `Retried.refused` does.
        """
        self._recorder.keep_pending()
        done, refused = list[str](), list[tuple[str, str, str]]()
        for name in ids:
            failures = self._recorder.kept.failures_of(name)
            if any(run.id in self._under_way for run in failures):
                refused.append((name, RETRY_RUNS, "a retry of this failure has not ended yet"))
            elif not any(run.id == name for run in failures):
                refused.append((name, NOT_KEPT, "no failure that waits is kept with this id"))
            else:
                for run in self._recorder.put_away(name):
                    self._outcomes.put_away(run.route or "", run.id or "")
                done.append(name)
        return done, refused

    def end(self, name: str) -> None:
        """Note that the retry of a failure has ended."""
        run = self._under_way.pop(name, "")
        if run in self._ends:
            # Of many successes the new runs are not kept any more, but their failures are.
            ended, failure = self._recorder.kept.get(run), self._recorder.kept.get(name)
            noted = None if failure is None else failure.run.retry_outcome
            self._ends[run] = ended.outcome if ended is not None else noted or _UNKNOWN
            if self._ends[run] == Outcome.RETRYING:  # it was given up
                self._ends[run] = _UNKNOWN
        self._recorder.kept.end_retry(name)
