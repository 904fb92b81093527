"""The broker as server mode sees it: a port that the engine implements. Types only.

Nothing here blocks. What takes time (room at the broker, a reply) calls `wake` once it has come: on any thread,
possibly before the method that was given it returns, and `wake` must not block either.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from amqtt_rest_bridge.bridge.payloads import TopicPayload
from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.model import Publication
from amqtt_rest_bridge.records.bridge_records import BridgeRecords

Wake = Callable[[], None]


class ShuttingDownError(BridgeError):
    """The bridge is closing; nothing has been published."""


@dataclass(frozen=True, slots=True, eq=False)
class ServedEvent:
    """The server event that a request led to; `request` is its METHOD and ENDPOINT as the log shows them."""

    route: str
    event: str
    request: str


class Queued(Protocol):
    """A publication that waits for room on its way to the broker."""

    @property
    def sent(self) -> bool:
        """Return whether it has left, so that it cannot be withdrawn."""
        ...

    @property
    def outcome(self) -> bool | None:
        """Return whether the broker has it; None while that is not known."""
        ...

    def withdraw(self) -> bool:
        """Remove it from the queue; return false when it is not in it (any more)."""
        ...


class Reply(Protocol):
    """One request's place among those that wait for a message on a topic."""

    @property
    def payload(self) -> bytes | None:
        """Return the first message since `expect`, None as long as none came."""
        ...

    @property
    def dismissed(self) -> bool:
        """Return whether the bridge closed before a message came."""
        ...


class BrokerPort(Protocol):
    """What server mode needs of the broker. Every method may be called from any thread, several at once."""

    def publish(self, publication: Publication) -> bool:
        """Send a publication if there is room; once this returns true the broker has it, even if this process dies.

        False too where the broker's acknowledgement has to be waited for, see `enqueue`.

        Raises `ShuttingDownError` when the bridge closes.
        """
        ...

    def enqueue(self, publication: Publication, wake: Wake) -> Queued:
        """Send a publication as soon as there is room, in order of arrival.

        `wake` is called once it was sent late, and once its outcome is known later.

        Raises `ShuttingDownError` when the bridge closes.
        """
        ...

    def latest(self, topic_filter: str) -> TopicPayload | None:
        """Return the latest payload seen on a read event's SOURCE_TOPIC, None before there is one."""
        ...

    @property
    def records(self) -> BridgeRecords | None:
        """Return where requests are recorded for the admin port, None without one; the same while the bridge runs."""
        ...

    def expect(self, topic: str, wake: Wake) -> AbstractContextManager[Reply]:
        """Wait for the first message on `topic` from entering on, until leaving; it or a dismissal calls `wake`."""
        ...

    def answered(
        self, served: ServedEvent, request_id: str, status: str, code: str | None, message: str | None, seconds: float
    ) -> None:
        """Count an answer: its status line, for an error the code with its message (else None), and its duration.

        Called once for every request that led to an event.
        """
        ...

    def unmatched(self, port: int, method: str, path: str, status: str) -> None:
        """Count a request that led to no endpoint: the port that it came to, its path and its answer's status line."""
        ...
