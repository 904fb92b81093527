"""The bridge process's main: one link, one engine. The plugin starts it as `python -m`, or as a thread of the broker.

The link is its only tie to the broker: when it closes, the process ends, so a killed broker leaves none behind.
"""

import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterable

from amqtt_rest_bridge.bridge.client.senders import unusable_routes
from amqtt_rest_bridge.bridge.engine import Engine, Network
from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.link.bridge_end import BridgeEnd
from amqtt_rest_bridge.link.frames import Log
from amqtt_rest_bridge.model import Route
from amqtt_rest_bridge.settings import BridgeSettings
from amqtt_rest_bridge.system import leave_no_core_file, return_large_blocks


def run(sock: socket.socket) -> None:
    """Serve the broker at the other end of a socket until it closes it; blocks."""
    Engine(BridgeEnd(sock), Network()).run()


def check_routes(routes: Iterable[Route], settings: BridgeSettings) -> None:
    """Raise `ConfigurationError` for the first route that a bridge process could not run; reads its TLS files."""
    for route, error in unusable_routes(routes, settings, os.environ):
        raise ConfigurationError(f"route {route.name}: {error}") from error


class LinkHandler(logging.Handler):
    """Sends log records, of the levels that the broker has set, to the broker's logging."""

    def __init__(self, link: BridgeEnd) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        self._link.send(Log(record.levelno, record.name, self.format(record)))


def main() -> None:
    """Run as a process: `python -m amqtt_rest_bridge.bridge.main DESCRIPTOR LEVEL`."""
    # Ctrl-C, a hang-up and a supervisor's SIGTERM reach the whole group; the broker says when to stop.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every connection of server mode needs a descriptor
    leave_no_core_file()
    return_large_blocks(few_arenas=True)
    link = BridgeEnd(socket.socket(fileno=int(sys.argv[1])))
    logging.basicConfig(level=int(sys.argv[2]), handlers=[LinkHandler(link)], format="%(message)s")
    Engine(link, Network(), settle).run()


def settle() -> None:
    """Keep modules and routes, which live until the next reload, out of the garbage collector's rounds; blocks.

    With 1,000 routes a full round stops every thread for 40 ms (8 without them), and /metrics, which makes 15,000
    samples, starts one at every third request. What the last reload left in cycles is collected first.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    main()
