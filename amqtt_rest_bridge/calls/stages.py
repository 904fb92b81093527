"""The stages of a call in a bridge process: what each setting of an event does to its calls. Pure."""

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from amqtt_rest_bridge.calls.batches import Split
from amqtt_rest_bridge.calls.call import OpenCall, PreparedEvent, SkippedError, Stage, Step, Verdict
from amqtt_rest_bridge.catalogue import SCHEMA_FAULTS
from amqtt_rest_bridge.engine.stages.retries import delay, is_retryable
from amqtt_rest_bridge.errors import CallError
from amqtt_rest_bridge.model import ClientEvent, HttpRequest, HttpResponse, Route, RunIds, Signature
from amqtt_rest_bridge.placeholders import Condition, MessageValues, PlaceholderText, predicate
from amqtt_rest_bridge.schemas import Schema, checker_of

_TRIAL: Final = RunIds("00000000-0000-4000-8000-")  # the same id whenever a call is tried


def _still() -> float:
    """Return the time of a trial, in which none passes."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Means:
    """What comes from outside: Unix time, a number from 0 to 1, ids of calls, and what records verdicts, if any.

    `monotonic` is the time that nothing sets.
    """

    now: Callable[[], float]
    random: Callable[[], float]
    runs: RunIds
    record: Callable[[OpenCall, Verdict], None] | None = None
    monotonic: Callable[[], float] = _still


def prepare(route: Route, event: ClientEvent, *, max_body_bytes: int, means: Means | None = None) -> PreparedEvent:
    """Return an event whose calls pass the stages of its settings; without `means` a call has one try.

    Not here are the turns of RATE_LIMIT, which all definitions of a route share (`open_calls.Turns`), and the access
    token of OAUTH2, which takes requests of its own (`oauth2.AccessTokens`).

    Raises:
        ConfigurationError: BASE_ADDRESS or USERNAME of the route cannot be used.
    """
    monotonic = _still if means is None else means.monotonic
    tries_again = route.is_lossless or route.config.retries > 0
    life = (
        Ordered(route, event) if event.is_in_order else None,
        Checked(event.schema_file) if event.schema_file is not None else None,
        When(event.when) if event.when is not None else None,
        Deduplicated(route.name, event.name, event.dedupe_key) if event.dedupe_key is not None else None,
        OnChange(event.on_change, event.on_change_for, monotonic) if event.on_change is not None else None,
        Split(refused=event.batch_split) if event.batch_size is not None else None,
        Signed(event.signature) if event.signature is not None else None,
        Retries(route, event, means.now, means.random) if means is not None and tries_again else None,
        Recorded(means.record) if means is not None and means.record is not None else None,
    )
    stages = [stage for stage in life if stage is not None]
    runs = _TRIAL if means is None else means.runs
    return PreparedEvent(route, event, stages, runs, max_body_bytes=max_body_bytes)


class Ordered(Stage):
    """ORDERED, and ON_CHANGE: calls of one topic run one after the other, batches whatever their topics."""

    def __init__(self, route: Route, event: ClientEvent) -> None:
        self._names = route.name, event.name
        self._by_topic = event.batch_size is None

    def enter(self, call: OpenCall) -> None:
        """Name the line that the call enters."""
        call.line = (*self._names, call.message.topic if self._by_topic else "")


class Checked(Stage):
    """SCHEMA_FILE: a call whose payload does not match fails."""

    def __init__(self, schema: Schema) -> None:
        self._check = checker_of(schema)

    def admit(self, call: OpenCall, _: MessageValues) -> None:
        """Fail the call for what its payload has against the schema."""
        if faults := self._check(call.message.payload):
            message = f"the payload does not match SCHEMA_FILE: {'; '.join(faults)}"
            raise SCHEMA_FAULTS.error(message, unsent=True)


class When(Stage):
    """WHEN: a call whose condition is false sends nothing."""

    def __init__(self, condition: Condition) -> None:
        self._is_wanted = predicate(condition)

    def admit(self, _: OpenCall, values: MessageValues) -> None:
        """Skip the call, unless its condition is true."""
        if not self._is_wanted(values):
            raise SkippedError


def dedupe_key(route: str, event: str, text: bytes) -> bytes | None:
    """Return the key of a text of DEDUPE_KEY: that of an event, which others do not share; None for an empty text."""
    return _digest("\0".join((route, event, "")).encode() + text) if text else None


class Deduplicated(Stage):
    """DEDUPE_KEY: a call whose key was seen sends nothing.

    Whether it was seen decides the broker process, for all bridge processes (`routing.claims`); a driver asks it
    between the first time that a call is begun, which fills its key, and the second. A call without a key goes on.
    """

    def __init__(self, route: str, event: str, text: PlaceholderText) -> None:
        self._names = route, event
        self._text = text

    def admit(self, call: OpenCall, values: MessageValues) -> None:
        """Fill the key of a call; skip one whose key was seen."""
        call.key = dedupe_key(*self._names, self._text.fill_bytes(values))
        if call.was_seen:
            raise SkippedError


MOST_TOPICS: Final = 100_000
"""Topics of an event whose last text is known: 29 MB. Those beyond it push out the ones that were sent longest ago."""


class OnChange(Stage):
    """ON_CHANGE: a call whose text is the one that its topic's last successful call had sends nothing.

    Only digests are kept. Calls of one topic run one after the other, so that two threads never share an entry, and
    each step on the `OrderedDict` is one call of C. A publisher that invents topics has others sent once more.

    Args:
        text: What is compared.
        seconds: After which the same text is sent again, None for never.
        monotonic: Returns the time that nothing sets.
        most: Topics that are known.
    """

    def __init__(
        self, text: PlaceholderText, seconds: int | None, monotonic: Callable[[], float], most: int = MOST_TOPICS
    ) -> None:
        self._text = text
        self._seconds = seconds
        self._monotonic = monotonic
        self._most = most
        self._last: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()  # by topic; the one sent last at the end

    def admit(self, call: OpenCall, values: MessageValues) -> None:
        """Skip the call if its topic's last text is the same, and still counts."""
        call.text = _digest(self._text.fill_bytes(values))
        last = self._last.get(_digest(call.message.topic.encode()))
        if last is None or last[0] != call.text:
            return
        if self._seconds is None or self._monotonic() - last[1] < self._seconds:
            raise SkippedError

    def ended(self, call: OpenCall, verdict: Verdict) -> None:
        """Keep the text of a call that has succeeded; one that failed was not seen."""
        if verdict.step is Step.DONE and call.text is not None:
            topic = _digest(call.message.topic.encode())
            self._last.pop(topic, None)
            self._last[topic] = call.text, self._monotonic()
            if len(self._last) > self._most:
                self._last.popitem(last=False)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


class Retries(Stage):
    """Try again, RETRIES times, or for a lossless route (OVERLOAD_POLICY) until a try succeeds.

    Args:
        route: The route of the event.
        event: Its RETRY_ON and METHOD count.
        now: Returns Unix time in seconds.
        random: Returns a number from 0 to 1.
    """

    def __init__(self, route: Route, event: ClientEvent, now: Callable[[], float], random: Callable[[], float]) -> None:
        self._retries = route.config.retries
        self._lossless = route.is_lossless
        self._event = event
        self._now = now
        self._random = random

    def after(self, call: OpenCall, failure: CallError, response: HttpResponse | None) -> Verdict | None:
        """Return when a call is tried again, None when that may not help or is not safe, or was done often enough."""
        if not self._lossless and call.tries > self._retries:
            return None
        listed = response is not None and response.status in self._event.retry_on
        outcome = failure if response is None else response
        if not listed and not is_retryable(self._event.method, outcome, lossless=self._lossless):
            return None
        seconds = delay(call.tries, response, now=self._now(), random=self._random)
        return Verdict(Step.AGAIN, None if response is None else response.status, failure, None, seconds)


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
        self.ended = record  # type: ignore[assignment, method-assign]  # itself: a function around it costs each call

    def ended(self, call: OpenCall, verdict: Verdict) -> None:
        """Record it."""
