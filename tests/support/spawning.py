"""Starting bridge processes, which a test can prevent for a while: what is sent meanwhile finds the process away."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from amqtt_rest_bridge.supervised_tasks import Times
from amqtt_rest_bridge.times import Backoff
from tests.support.forked import ForkedBridge

_RETRY_SECONDS = 0.02


class Spawning:
    """Starts the bridge processes of a broker that is handed its `options`; a failed start is tried again soon."""

    def __init__(self) -> None:
        self._fails = False
        times = Times(bridges=Backoff(_RETRY_SECONDS, _RETRY_SECONDS, at_once=True))
        self.options: dict[str, Any] = {"times": times, "spawn": self._spawn}

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Make every start of a bridge process fail until the block ends."""
        self._fails = True
        try:
            yield
        finally:
            self._fails = False

    def _spawn(self, sock: socket.socket) -> ForkedBridge:
        if self._fails:
            raise OSError("no more processes")
        return ForkedBridge(sock)
