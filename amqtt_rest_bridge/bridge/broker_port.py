"""What server mode asks of the engine. Types only; `server_mode` hands them on to whoever embeds it."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from amqtt_rest_bridge.bridge.payloads import TopicPayload
from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.model import Publication


class Overloaded(BridgeError):  # noqa: N818  # a state of the bridge, not a mistake
    """There was no room for a publication within the time given; it has not been published."""


class ShuttingDown(BridgeError):  # noqa: N818  # a state of the bridge, not a mistake
    """The bridge is closing; the publication has not been published."""


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """The server event that a request led to; `request` is its METHOD and ENDPOINT as the log shows them."""

    route: str
    event: str
    request: str


class Reply(Protocol):
    """One request's place among those that wait for a message on a topic."""

    @property
    def dismissed(self) -> bool:
        """Say whether the bridge closed before a message came."""
        ...

    def wait(self, seconds: float) -> bytes | None:
        """Block up to `seconds` for the first message since `expect`; None when none came or the bridge closes."""
        ...


class Outlet(Protocol):
    """The engine, as server mode sees it. Every method may be called from any thread, several at once."""

    def publish(self, publication: Publication, *, wait: float) -> None:
        """Send a publication to the broker; once this returns the broker has it, even if this process dies.

        Blocks at most `wait` seconds for room. With `wait=0` it is called on the listener's own thread, for every
        request that finds room: then it must not block for longer than sending takes.

        Raises:
            Overloaded: no room within `wait`; nothing was published.
            ShuttingDown: the bridge closes; nothing was published.
        """
        ...

    def latest(self, topic_filter: str) -> TopicPayload | None:
        """Return the latest payload seen on a read event's SOURCE_TOPIC, None before there is one. Never blocks."""
        ...

    def expect(self, topic: str) -> AbstractContextManager[Reply]:
        """Stand waiting for the first message on `topic` from entering on; leaving stops waiting. Never blocks."""
        ...

    def answered(self, served: Served, status: str, code: str | None, message: str | None) -> None:
        """Count an answer: its status line, and for an error the code with its message (else None).

        Never blocks. Called once for every request that led to an event.
        """
        ...
