"""BATCH_SIZE: which messages become one request, and what each of them is in it. Pure, no locks.

`requests.Items` makes the item of a message, `Gathering` collects the calls of an event until their batch is closed.
Then the first of them is the call that a driver goes on with; the others are its riders.
"""

from typing import Final

from amqtt_rest_bridge.calls.call import OpenCall, Stage, Step, Verdict
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.model import HttpResponse

REFUSED: Final = (400, 413, 422)
"""Statuses that one bad item may cause."""


class Gathering:
    """The calls of an event that wait for their batch to be closed.

    A batch is closed when it has `size` calls, before its items exceed `most_bytes`, or by `take` when its time is
    over. With `has_groups` keys are those of `spool.Spool`, which numbers the messages of a batch together: then a
    batch holds messages of one group only. So the messages that come again after a kill make the batch that they
    were, with the same key, whatever comes behind them.
    """

    def __init__(self, size: int, most_bytes: int, *, has_groups: bool) -> None:
        self._size = size
        self._most_bytes = most_bytes
        self._has_groups = has_groups
        self._calls: list[OpenCall] = []
        self._bytes = 0
        self.number = 0
        """Of the batch that is open, or comes next."""

    @property
    def is_empty(self) -> bool:
        """Return whether no call waits."""
        return not self._calls

    def add(self, call: OpenCall) -> list[OpenCall]:
        """Add a call that has an item; return the first calls of the batches that this closes."""
        closed: list[OpenCall] = []
        size = len(call.item or b"") + 1
        if self._calls and (self._bytes + size > self._most_bytes or self._group(call) != self._group(self._calls[0])):
            closed.append(self.take(self.number))
        self._calls.append(call)
        self._bytes += size
        if len(self._calls) == self._size or self._is_last(call):
            closed.append(self.take(self.number))
        return closed

    def take(self, number: int) -> OpenCall:
        """Close the open batch, which has this number, and return its first call."""
        first, *first.riders = self._calls
        self._calls, self._bytes, self.number = [], 0, number + 1
        return first

    def _group(self, call: OpenCall) -> str | None:
        key = call.idempotency_key
        return key[:-4] if self._has_groups and key is not None else None

    def _is_last(self, call: OpenCall) -> bool:
        key = call.idempotency_key
        return self._has_groups and key is not None and key.endswith(f"{self._size - 1:04x}")


def halve(call: OpenCall) -> OpenCall:
    """Leave a call the first half of its batch; return the first call of the other half."""
    batch = [call, *(call.riders or ())]
    middle = (len(batch) + 1) // 2
    call.riders, call.tries = batch[1:middle], 0
    return carrying(batch[middle:], call)


def carrying(batch: list[OpenCall], before: OpenCall) -> OpenCall:
    """Return the first call of a batch, which carries the others in place of the call that did before."""
    first, *first.riders = batch
    first.line, first.tries = before.line, before.tries
    return first


class Split(Stage):
    """A batch that is too large is halved: BODY may hold the items twice, or escaped.

    With BATCH_SPLIT one that is refused is halved too, until the item that is at fault is alone.
    """

    def __init__(self, *, refused: bool) -> None:
        self._refused = refused

    def after(self, call: OpenCall, failure: CallError, response: HttpResponse | None) -> Verdict | None:
        """Return that the halves of a batch are sent, None for any other call."""
        if not call.riders:
            return None
        if response is None:
            return Verdict(Step.SPLIT, None, failure) if failure.code is FailureCode.PAYLOAD_TOO_LARGE else None
        is_refused = self._refused and response.status in REFUSED
        return Verdict(Step.SPLIT, response.status, failure) if is_refused else None
