"""What the connections of a port share: the application, the limits, and the turns in which they are served."""

import asyncio
import itertools
import time
import uuid
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from amqtt_rest_bridge.http.access_log import AccessLog
from amqtt_rest_bridge.http.exchange import Application, Refusal

if TYPE_CHECKING:
    from amqtt_rest_bridge.http.connection import Connection

_READ_BYTES: Final = 16_384
# Of an iteration of the loop, for callers, for those whose last answer was an error, and for streams.
_TURN_SECONDS: Final = 0.001
_REFUSED_SECONDS: Final = 0.00025
_STREAMS_SECONDS: Final = 0.0005


class TakesTurns(Protocol):
    """Something that is to be done for one caller."""

    def take_turn(self) -> None:
        """Do it; called once for each time that it was queued."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a port, in seconds and counts.

    `connections` None means half of the process's file descriptors, 4,096 at most.
    """

    slow_seconds: float = 30.0  # for a request from its first to its last byte, a handshake, a stalled answer
    idle_seconds: float = 120.0  # a connection between requests
    waiting: int = 1024  # answers that are being made
    waiting_bytes: int = 64 << 20  # of the bodies of their requests
    connections: int | None = None
    patience_seconds: float = 1.0  # with a peer that sends or reads only a part, when connections are scarce
    linger_seconds: float = 2.0  # for a peer to read a refusal while it sends on


class Port:
    """What the connections of a port share: the application, the limits, and the turns.

    What is to be done for callers is done in *turns*, so that one caller costs no other caller's answer, and all of
    them little of the loop's time. In an iteration of the loop each connection has one request at most, and all of them
    together a millisecond. Callers whose last answer was an error come after the others with a quarter of that, so that
    a flood of them delays no other caller; so do handshakes of TLS. Streams come last, with half a millisecond.
    """

    def __init__(
        self, app: Application, limits: Limits, max_body_bytes: int, access_log: AccessLog | None = None
    ) -> None:
        self.app = app
        self.limits = limits
        self.max_body_bytes = max_body_bytes
        self.access_log = access_log
        self.closing: Refusal | None = None
        """What new requests are answered with."""
        self.leaving = False
        """Each answer is the last one on its connection."""
        self.connections: set[Connection] = set()
        self.aborted: set[Connection] = set()
        """Those that the loop closes in one of its next iterations; they are not in `connections` any more."""
        self.waiting: set[Connection] = set()
        """The connections whose answers are being made; the peers of some may have gone."""
        self.waiting_bytes = 0
        self.buffer = memoryview(bytearray(_READ_BYTES))
        """What a connection reads into, before it takes it away."""
        self.ready: deque[TakesTurns] = deque()
        """The connections that have something unread, in order of arrival; `refused` after an error."""
        self.refused: deque[TakesTurns] = deque()
        self.handshakes: deque[TakesTurns] = deque()
        """The connections for whose handshake something has come."""
        self.streaming: deque[TakesTurns] = deque()
        """The streams that have a piece, or may have."""
        self._has_turn = False
        # A random start and a number: a whole random UUID for each request takes 2 us.
        self._prefix = str(uuid.uuid4())[:24]
        self._numbers = itertools.count(1)

    @property
    def is_full(self) -> bool:
        """Return whether no more answers may wait."""
        return len(self.waiting) >= self.limits.waiting or self.waiting_bytes >= self.limits.waiting_bytes

    def forget(self, connection: "Connection") -> None:
        """Note that a connection has ended."""
        self.connections.discard(connection)
        self.aborted.discard(connection)

    def request_id(self) -> str:
        """Return the id of the next request, a UUID that no other request has."""
        return f"{self._prefix}{next(self._numbers):012x}"

    def schedule(self) -> None:
        """Take a turn in the next iteration of the loop."""
        if not self._has_turn:
            self._has_turn = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._has_turn = False
        for callers, seconds in (
            (self.ready, _TURN_SECONDS),
            (self.refused, _REFUSED_SECONDS),
            (self.handshakes, _REFUSED_SECONDS),
            (self.streaming, _STREAMS_SECONDS),
        ):
            until = time.monotonic() + seconds
            for _ in range(len(callers)):
                callers.popleft().take_turn()
                if time.monotonic() >= until:
                    break
        if self.ready or self.refused or self.handshakes or self.streaming:
            self.schedule()
