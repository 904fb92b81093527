"""A client that publishes until its broker is gone, and knows what was acknowledged."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from tests.benchmarks.mqtt_wire import Wire, publish_packet

TOPICS = 7


class Publisher:
    """Publishes payloads at QoS 1, some at once on a few topics, and goes on where it was when it connects again.

    Args:
        at_once: How many.
        payload: Returns the payload of a number.
        topic: The topic of all of them, in place of `in/0` to `in/6`.
    """

    def __init__(
        self, at_once: int = 20, payload: Callable[[int], bytes] = b"%d".__mod__, topic: str | None = None
    ) -> None:
        self.acknowledged: set[int] = set()
        self._at_once, self._payload, self._topic = at_once, payload, topic
        self._sent = 0

    @property
    def payloads(self) -> set[bytes]:
        """Return the payloads of those that were acknowledged."""
        return set(map(self._payload, self.acknowledged))

    def publish(self, port: int, count: int | None = None) -> None:
        """Connect and publish until so many more are acknowledged, or until the broker is gone."""
        end = None if count is None else len(self.acknowledged) + count
        with contextlib.suppress(OSError), contextlib.closing(Wire(port, f"publisher-{id(self)}")) as wire:
            while end is None or len(self.acknowledged) < end:
                self.publish_some(wire)

    @contextlib.contextmanager
    def publishing(self, port: int) -> Iterator[None]:
        """Publish on a thread; the block has to end the broker."""
        thread = threading.Thread(target=self.publish, args=(port,))
        thread.start()
        yield
        thread.join()

    def publish_some(self, wire: Wire) -> None:
        """Publish some at once, and wait for their PUBACKs."""
        first, self._sent = self._sent, self._sent + self._at_once
        numbers = range(first, self._sent)
        topics = [self._topic or f"in/{number % TOPICS}" for number in numbers]
        wire.send(
            b"".join(
                publish_packet(topic, self._payload(number), 1 + number - first)
                for topic, number in zip(topics, numbers, strict=True)
            )
        )
        waiting = set(numbers)
        while waiting:
            for kind, packet_id in wire.receive():
                number = first + int.from_bytes(packet_id) - 1
                if kind == 0x40 and number in waiting:
                    waiting.remove(number)
                    self.note_acknowledged(number)

    def note_acknowledged(self, number: int) -> None:
        self.acknowledged.add(number)
