"""Port numbers for servers that cannot choose their own with port 0."""

import contextlib
import random
import socket

_RANGE = range(10_000, 32_000)
"""Below those that the system gives to sockets that ask for any port, which may take a port that is free just now."""


def free_ports(count: int) -> list[int]:
    """Return different ports on which nothing listens."""
    chance = random.SystemRandom()
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = chance.choice(_RANGE)
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
        return ports


def free_port() -> int:
    """Return a port on which nothing listens."""
    return free_ports(1)[0]
