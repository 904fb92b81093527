"""The listening socket, bound before anything else so that a taken port is known at once."""

import socket

from template_api.errors import StartError

_BACKLOG = 1024


def listening_socket(host: str, port: int) -> socket.socket:
    """Bind a socket and listen on it; port 0 takes a free one.

    Raises:
        StartError: the address cannot be bound; the message says why.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as exc:
        raise StartError(f"cannot listen on {host} port {port}: {exc}") from exc
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError as exc:
        bound.close()
        raise StartError(f"cannot listen on {host} port {port}: {exc.strerror}") from exc
    return bound
