"""Callers who are served before the broker's loop reads the link: theirs is published when it does."""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any, cast

from amqtt_rest_bridge.link.frames import Publications, Ready, encode
from amqtt_rest_bridge.model import Publication
from amqtt_rest_bridge.processes.bridge_process import BridgeProcess
from amqtt_rest_bridge.routing.claims import Claims
from amqtt_rest_bridge.spool import SeenKeys


class _Server:
    """Its own publisher."""

    def __init__(self) -> None:
        self.publisher = self
        self.claims = Claims(SeenKeys(None))
        self.put_on: list[tuple[bytes, bool]] = []

    def put(self, publication: Publication, _hops: int, _release: object, confirm: Callable[..., None] | None) -> None:
        assert confirm is not None
        confirm(published=True)
        self.put_on.append((publication.payload, asyncio.get_running_loop().is_running()))


def test_what_callers_publish_before_the_loop_reads_is_published_and_confirmed_then() -> None:
    ends: list[socket.socket] = []

    def spawn(theirs: socket.socket) -> tuple[int, Callable[[], None]]:
        theirs.sendall(encode(Publications([Publication("hooks", b"early")], 1)) + encode(Ready()))
        ends.append(theirs)
        return 1, lambda: None

    async def run() -> list[tuple[bytes, bool]]:
        server = _Server()
        ignored = cast("Any", lambda *_: None)
        loop = asyncio.get_running_loop()
        bridge = BridgeProcess(0, loop, spawn, 1, cast("Any", server), ignored, ignored, ignored, 60)
        await asyncio.to_thread(bridge.await_ready, time.monotonic() + 10)
        assert server.put_on == []
        bridge.attach()
        ends[0].setblocking(False)
        assert await loop.sock_recv(ends[0], 1000)  # the confirmation
        bridge.disconnect()
        return server.put_on

    assert asyncio.run(run()) == [(b"early", True)]
    ends[0].close()
