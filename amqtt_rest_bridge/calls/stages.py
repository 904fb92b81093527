"""The stages of a call: what each setting of an event does to its calls. Pure.

A new capability is a class here (or, beyond a few lines, a module beside this one) and its row in `prepare`.
"""

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from amqtt_rest_bridge.calls.call import OpenCall, PreparedEvent, SkippedError, Stage, Verdict
from amqtt_rest_bridge.calls.retries import Retries
from amqtt_rest_bridge.model import ClientEvent, HttpRequest, Route, RunIds, Signature
from amqtt_rest_bridge.placeholders import Condition, MessageValues, predicate

_TRIAL: Final = RunIds("00000000-0000-4000-8000-")  # the same id whenever a call is tried


@dataclass(frozen=True, slots=True)
class Means:
    """What comes from outside: Unix time, a number from 0 to 1, ids of calls, and what records verdicts, if any."""

    now: Callable[[], float]
    random: Callable[[], float]
    runs: RunIds
    record: Callable[[OpenCall, Verdict], None] | None = None


def prepare(route: Route, event: ClientEvent, *, max_body_bytes: int, means: Means | None = None) -> PreparedEvent:
    """Return an event whose calls pass the stages of its settings; without `means` a call has one try.

    Not here are the turns of RATE_LIMIT, which all definitions of a route share (`open_calls.Turns`), and the access
    token of OAUTH2, which takes requests of its own (`oauth2.AccessTokens`).

    Raises:
        ConfigurationError: BASE_ADDRESS or USERNAME of the route cannot be used.
    """
    tries_again = route.is_lossless or route.config.retries > 0
    life = (
        Ordered(route, event) if event.ordered else None,
        When(event.when) if event.when is not None else None,
        Signed(event.signature) if event.signature is not None else None,
        Retries(route, event, means.now, means.random) if means is not None and tries_again else None,
        Recorded(means.record) if means is not None and means.record is not None else None,
    )
    stages = [stage for stage in life if stage is not None]
    runs = _TRIAL if means is None else means.runs
    return PreparedEvent(route, event, stages, runs, max_body_bytes=max_body_bytes)


class Ordered(Stage):
    """ORDERED: calls of one topic run one after the other."""

    def __init__(self, route: Route, event: ClientEvent) -> None:
        self._names = route.name, event.name

    def enter(self, call: OpenCall) -> None:
        """Name the line that the call enters."""
        call.line = (*self._names, call.message.topic)


class When(Stage):
    """WHEN: a call whose condition is false sends nothing."""

    def __init__(self, condition: Condition) -> None:
        self._is_wanted = predicate(condition)

    def admit(self, _: OpenCall, values: MessageValues) -> None:
        """Skip the call, unless its condition is true."""
        if not self._is_wanted(values):
            raise SkippedError


class Signed(Stage):
    """SIGNATURE_SECRET: the server can see whom the body comes from."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature

    def before(self, _: OpenCall, request: HttpRequest) -> HttpRequest:
        """Add the signature over the body."""
        digest = hmac.new(self._signature.secret.encode(), request.body or b"", hashlib.sha256).hexdigest()
        return replace(request, headers=(*request.headers, (self._signature.header, f"sha256={digest}")))


class Recorded(Stage):
    """The admin port: the verdict on each try is recorded."""

    def __init__(self, record: Callable[[OpenCall, Verdict], None]) -> None:
        self._record = record

    def ended(self, call: OpenCall, verdict: Verdict) -> None:
        """Record it."""
        self._record(call, verdict)
