"""BATCH_SIZE, BATCH_SECONDS, BATCH_ITEM, BATCH_SPLIT: messages that become one request.

`Items` makes the item of a message. `Batches` collects the calls of an event until their batch is closed. From then on
there is one `Batch`, which `engine.call` treats like any other call. `SplitStage` halves a batch that is too large.
"""

import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from amqtt_rest_bridge.catalogue import NO_LINE_BREAKS
from amqtt_rest_bridge.engine.event import Attempts, Batch, Call, PreparedEvent, Stage, Verdict
from amqtt_rest_bridge.engine.needs import Clock, Outcome
from amqtt_rest_bridge.errors import FailureCode
from amqtt_rest_bridge.lot.placeholders.formats import from_json, to_json
from amqtt_rest_bridge.lot.placeholders.kinds import BATCH, Mode
from amqtt_rest_bridge.lot.placeholders.text import BatchValues, MessageValues, Place, PlaceholderText, parse

BAD_ITEM_STATUSES: Final = (400, 413, 422)
"""Statuses with which a server may refuse a batch because of one item."""

_KEYS: Final = uuid.UUID("5f9c2a86-0d3e-5b0e-8f0c-8c4f1f3a7d51")  # the namespace of Idempotency-Keys of batches
_FIXED_BYTES: Final = 64  # of a request, beside its items and the text of BODY
_LINE_BREAK: Final = re.compile(r"[\n\r]")


class Items:
    """Makes the items of an event's batches: BATCH_ITEM filled from a message, or without it the payload.

    In `{batch}` or a JSON body each item is JSON on one line: JSON stays as it is, other text becomes a string.
    Elsewhere each item is one line of text.
    """

    def __init__(self, item: PlaceholderText | None, body: PlaceholderText) -> None:
        self._text = item or parse("{payload}", Place.TEXT, Mode.CLIENT)
        self._as_json = body.place is Place.JSON or any(one.root == BATCH for one in body.placeholders)

    def make(self, values: MessageValues) -> bytes:
        """Return the item of a message.

        Raises:
            CallError: A value is missing (`placeholder_unresolved`), or the item would be more than one line
                (`invalid_value`).
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

    def values_of_batch(self, calls: list[Call]) -> tuple[BatchValues, str | None]:
        """Return the values of a batch and its Idempotency-Key, None where its calls have none."""
        message = calls[0].message
        items = [one.item or b"" for one in calls]
        values = BatchValues(b"", message.timestamp, topic=message.topic, items=items)
        keys = [one.key for one in calls if one.key is not None]
        return values, batch_key(keys) if keys else None


def batch_key(keys: Iterable[str]) -> str:
    """Return the Idempotency-Key of a batch: it depends on the messages and their order only."""
    return str(uuid.uuid5(_KEYS, "\0".join(keys)))


class _OpenBatch(Struct, eq=False):
    """The calls of a batch so far, and the size of the request for them in bytes."""

    calls: list[Call]
    size: int


class Batches:
    """The open batches of a route, at most one for each event.

    A batch is closed when it has BATCH_SIZE calls, before its items exceed max_body_bytes, and BATCH_SECONDS after its
    first call has come.

    Lossless messages that come again after a kill must make the same batch, with the same Idempotency-Key. So
    `store.spool` puts messages into groups as they come (`has_groups`), and a batch has calls of one group only. The
    key of a message is the key of its group, followed by its number in the group: four hexadecimal digits from 0.

    Args:
        max_body_bytes: Bounds the request.
        clock: Times BATCH_SECONDS.
        on_closed: Called with the calls of a closed batch.
        has_groups: Whether the keys of lossless calls name groups.
    """

    def __init__(
        self, max_body_bytes: int, clock: Clock, on_closed: Callable[[list[Call]], None], *, has_groups: bool = False
    ) -> None:
        self._most_bytes = max_body_bytes
        self._clock = clock
        self._on_closed = on_closed
        self._has_groups = has_groups
        self._open: dict[str, _OpenBatch] = {}  # by event

    def add(self, call: Call) -> None:
        """Add a call that has an item to the open batch of its event."""
        event, size = call.event.event, len(call.item or b"") + 1
        batch, group = self._open.get(event.name), self._group(call)
        if batch is not None and (batch.size + size > self._most_bytes or group != self._group(batch.calls[0])):
            self.close(event.name)
            batch = None
        if batch is None:
            body = event.body.source if event.body is not None else ""
            batch = self._open[event.name] = _OpenBatch([], _FIXED_BYTES + len(body.encode()))
            self._clock.later(event.batch_seconds, partial(self._close_overdue, event.name, batch))
        batch.calls.append(call)
        batch.size += size
        most = event.batch_size or 1
        # The batch may have fewer calls than the group has messages: WHEN may have skipped some.
        is_last_of_group = group is not None and (call.key or "").endswith(f"{most - 1:04x}")
        if len(batch.calls) >= most or is_last_of_group:
            self.close(event.name)

    def close(self, event: str) -> None:
        """Close the open batch of an event and send it on, unless all its calls have ended."""
        calls = [call for call in self._open.pop(event).calls if not call.has_ended]
        if calls:
            self._on_closed(calls)

    def close_changed(self, events: Mapping[str, PreparedEvent]) -> None:
        """Close the open batches of events that a reload has removed, or whose items it has changed."""
        for name, batch in list(self._open.items()):
            if name not in events or events[name].batch_form != batch.calls[0].event.batch_form:
                self.close(name)

    def close_all(self, *, lossless: bool = True) -> None:
        """Close the open batches; without `lossless` only those of events that are not lossless."""
        for name, batch in list(self._open.items()):
            if lossless or not batch.calls[0].event.is_lossless:
                self.close(name)

    def _group(self, call: Call) -> str | None:
        """Return the key of a call's group, with which its own key begins; None if the call can be in any batch."""
        return call.key[:-4] if self._has_groups and call.key is not None else None

    def _close_overdue(self, event: str, batch: _OpenBatch) -> None:
        """Close a batch whose BATCH_SECONDS are over, if it is still open."""
        if self._open.get(event) is batch:
            self.close(event)


def batch_of(calls: list[Call], attempts: Attempts | None = None) -> Batch:
    """Return the batch of these calls, which share its `attempts`; by default there are none so far."""
    first, hops, attempts = calls[0], max(call.hops for call in calls), attempts or Attempts()
    for call in calls:
        call.attempts = attempts
    return Batch(first.number, first.resume, first.event, first.message, 0, hops, attempts=attempts, calls=calls)


def halve(batch: Batch) -> Batch:
    """Split a batch: it keeps the first half of its calls. Return a batch with the second half."""
    middle = (len(batch.calls) + 1) // 2
    batch.attempts.count = 0
    second = batch_of(batch.calls[middle:], replace(batch.attempts, last=copy(batch.attempts.last)))
    second.line, second.has_begun = batch.line, batch.has_begun
    batch.calls = batch.calls[:middle]
    return second


class SplitStage(Stage):
    """Halves a batch whose request is too large. It may become so when BODY holds each item twice, or escaped.

    With BATCH_SPLIT a batch that the server refuses is halved too, again and again until the faulty item is alone.
    """

    def __init__(self, *, halves_refused: bool) -> None:
        self._halves_refused = halves_refused

    def retry(self, call: Call, verdict: Verdict) -> Verdict:
        """Return a verdict by which the halves of the batch are sent, otherwise the given verdict."""
        if len(call.calls) < 2 or verdict.failure is None:
            return verdict
        if verdict.response is None:
            is_halved = verdict.failure.code is FailureCode.PAYLOAD_TOO_LARGE
        else:
            is_halved = self._halves_refused and verdict.response.status in BAD_ITEM_STATUSES
        return replace(verdict, outcome=Outcome.RETRYING, is_halved=True) if is_halved else verdict
