"""BATCH_SIZE, BATCH_SECONDS, BATCH_ITEM, BATCH_SPLIT: messages that become one request.

`Items` makes the item of a message, `Batches` collects the calls of an event until their batch is closed. Then the
first of them carries the others: it goes on like any other call, and they end with it.
"""

import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from amqtt_rest_bridge.catalogue import NO_LINE_BREAKS
from amqtt_rest_bridge.engine.needs import Clock
from amqtt_rest_bridge.engine.stages import Call, Stage, Step, Verdict
from amqtt_rest_bridge.errors import FailureCode
from amqtt_rest_bridge.placeholders import (
    BATCH,
    MessageValues,
    Mode,
    Place,
    PlaceholderText,
    from_json,
    parse,
    to_json,
)

REFUSED: Final = (400, 413, 422)
"""Statuses that one bad item may cause."""

_KEYS: Final = uuid.UUID("5f9c2a86-0d3e-5b0e-8f0c-8c4f1f3a7d51")  # the namespace of Idempotency-Keys of batches
_AROUND: Final = 64  # bytes of a body beside its items, beyond the text of BODY
_LINE_BREAK: Final = re.compile(r"[\n\r]")


class Items:
    """Make the items of an event's batches: what BATCH_ITEM makes of a message, else its payload.

    Where `{batch}` or a JSON body holds them they are JSON: what is JSON as JSON, on one line, anything else as string.
    """

    def __init__(self, item: PlaceholderText | None, body: PlaceholderText) -> None:
        self._text = item or parse("{payload}", Place.TEXT, Mode.CLIENT)
        self._as_json = body.place is Place.JSON or any(one.root == BATCH for one in body.placeholders)

    def make(self, values: MessageValues) -> bytes:
        """Return the item of a message.

        Raises:
            CallError: `placeholder_unresolved`, a value is missing; `invalid_value`, it would be more than one line.
        """
        text = self._text.fill(values)
        if not self._as_json:
            line = text.removesuffix("\n").removesuffix("\r")
            if _LINE_BREAK.search(line):
                raise NO_LINE_BREAKS.error("the item of the message in {batch.lines} holds a line break", unsent=True)
            return line.encode()
        try:
            return to_json(from_json(text)).encode()
        except (ValueError, RecursionError):
            return to_json(text).encode()


def batch_key(keys: Iterable[str]) -> str:
    """Return the Idempotency-Key of a batch: the same for the same messages in the same order only."""
    return str(uuid.uuid5(_KEYS, "\0".join(keys)))


class Batches:
    """The open batches of a route, one an event.

    A batch is closed when it has BATCH_SIZE calls, before its items exceed max_body_bytes, and BATCH_SECONDS after its
    first call has come.

    Args:
        max_body_bytes: Bounds the request.
        clock: For their time.
        go_on: Called for a batch that is closed, with its first call, which carries the others.
    """

    def __init__(self, max_body_bytes: int, clock: Clock, go_on: Callable[[Call], None]) -> None:
        self._most_bytes = max_body_bytes
        self._clock = clock
        self._go_on = go_on
        self._open: dict[str, list[Call]] = {}  # by event
        self._bytes: dict[str, int] = {}

    def add(self, call: Call) -> None:
        """Add a call that has an item to the open batch of its event."""
        event, size = call.event.event, len(call.item or b"") + 1
        body = event.body.source if event.body is not None else ""
        if event.name in self._open and self._bytes[event.name] + size > self._most_bytes:
            self.close(event.name)
        batch = self._open.get(event.name)
        if batch is None:
            batch = self._open[event.name] = []
            self._bytes[event.name] = _AROUND + len(body.encode())
            self._clock.later(event.batch_seconds, partial(self._time_over, event.name, batch))
        batch.append(call)
        self._bytes[event.name] += size
        if len(batch) >= (event.batch_size or 1):
            self.close(event.name)

    def close(self, event: str) -> None:
        """Close the open batch of an event, if it has any call that goes on."""
        batch = [call for call in self._open.pop(event, ()) if not call.has_ended]
        if batch:
            self._go_on(carrying(batch))

    @property
    def by_event(self) -> Mapping[str, list[Call]]:
        """Return the open batches."""
        return dict(self._open)

    def _time_over(self, event: str, batch: list[Call]) -> None:
        if self._open.get(event) is batch:
            self.close(event)


def carrying(batch: list[Call], before: Call | None = None) -> Call:
    """Return the first of these calls, which carries the others, in place of the call that carried them before."""
    first, *riders = batch
    first.riders, first.carrier = riders or None, None
    for rider in riders:
        rider.carrier = first
    if before is not None and before is not first:
        first.line, first.has_begun, first.attempted = before.line, before.has_begun, before.attempted
    return first


def halve(call: Call) -> Call:
    """Leave a call the first half of its batch; return the call that carries the other half."""
    batch = call.batch
    middle = (len(batch) + 1) // 2
    second = carrying(batch[middle:], call)
    carrying(batch[:middle])
    call.attempted = second.attempted = 0
    return second


class Split(Stage):
    """A batch that is too large is halved: BODY may hold the items twice, or escaped.

    With BATCH_SPLIT one that is refused is halved too, until the item that is at fault is alone.
    """

    def __init__(self, *, refused: bool) -> None:
        self._refused = refused

    def after(self, call: Call, verdict: Verdict) -> Verdict:
        """Return that the halves of a batch are sent, the given verdict for any other call."""
        if not call.riders or verdict.step is not Step.FAILED or verdict.failure is None:
            return verdict
        if verdict.response is None:
            is_split = verdict.failure.code is FailureCode.PAYLOAD_TOO_LARGE
        else:
            is_split = self._refused and verdict.response.status in REFUSED
        return replace(verdict, step=Step.SPLIT) if is_split else verdict
