"""Port numbers for servers that cannot choose their own with port 0."""

import contextlib
import random
import socket


def free_ports(count: int) -> list[int]:
    """Return different ports on which nothing listens just now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(sock.getsockname()[1]) for sock in sockets]


def free_port() -> int:
    """Return a port on which nothing listens just now."""
    return free_ports(1)[0]


def steady_port() -> int:
    """Return a port for a server that is killed and started again: below those that the system gives out meanwhile."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
