"""The pace at which the bridge's publications reach the broker's queue, and who learns of it."""

import asyncio
from typing import Any, cast

from amqtt_rest_bridge.broker.publisher import Publisher
from amqtt_rest_bridge.lot.model import Publication


class Published:
    """What a publisher has given to a broker, and with which marks; in place of all that it needs."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, int, bool]] = []
        self.retained: list[tuple[bytes, bool]] = []
        self.done: list[bytes] = []
        self.publisher = Publisher(*[cast("Any", self)] * 3)

    async def broadcast_message(self, topic: str, payload: bytes, _qos: int | None) -> None:
        self.sent.append((topic, payload, self.publisher.hops, self.publisher.is_own))
        if payload == b"fails":
            raise ValueError("the broker cannot")

    async def retain_message(self, _topic: str, payload: bytes, _qos: int | None) -> None:
        self.retained.append((payload, self.publisher.is_own))

    def amended(self, publication: Publication) -> Publication:
        return Publication(publication.topic, b"amended", retain=publication.retain)

    def put(self, payload: bytes, topic: str = "topic", *, own: bool = False, retain: bool = False) -> None:
        publication = Publication(topic, payload, retain=retain)
        self.publisher.put(publication, 2, own=own, done=lambda: self.done.append(payload))

    def run(self, iterations: int) -> None:
        async def run() -> None:
            task = asyncio.create_task(self.publisher.run())
            for _ in range(iterations):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(run())


def test_a_publication_is_sent_every_second_iteration() -> None:
    for iterations, sent in ((4, [b"1", b"2"]), (5, [b"1", b"2", b"3"])):
        published = Published()
        for payload in (b"1", b"2", b"3"):
            published.put(payload)
        published.run(iterations)
        assert [payload for _, payload, _, _ in published.sent] == sent


def test_a_publication_is_done_after_its_turn_also_when_it_cannot_be_published() -> None:
    published = Published()
    for payload, topic in ((b"1", "topic"), (b"2", "a/#"), (b"fails", "topic"), (b"3", "topic")):
        published.put(payload, topic)
    assert (len(published.publisher), published.publisher.waiting_bytes, published.done) == (4, 8, [])
    published.run(50)
    assert [payload for _, payload, _, _ in published.sent] == [b"1", b"fails", b"3"]
    assert published.done == [b"1", b"2", b"fails", b"3"]
    assert (len(published.publisher), published.publisher.waiting_bytes) == (0, 0)
