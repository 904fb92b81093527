"""Why a port cannot be bound is said in one place, with what to do next."""

import errno
import os
import socket

import pytest

from amqtt_rest_bridge.addresses import why_not_bound


@pytest.mark.parametrize(
    ("error", "port", "said"),
    [
        pytest.param(
            OSError(errno.EADDRINUSE, "Address in use (while attempting to bind on address ('127.0.0.1', 80))"),
            8080,
            "Address already in use; set admin_port to another port, or end the program that has it: "
            "ss -ltnp 'sport = :8080'",
            id="taken",
        ),
        pytest.param(
            OSError(errno.EACCES, "Permission denied"),
            80,
            "Permission denied; set admin_port to a port from 1024: lower ones need CAP_NET_BIND_SERVICE",
            id="privileged",
        ),
        pytest.param(
            OSError(errno.EADDRNOTAVAIL, ""),
            8080,
            "Cannot assign requested address; name an address of this machine: ip -br address lists them",
            id="an address of another machine",
        ),
        pytest.param(OSError(errno.EACCES, ""), 8080, os.strerror(errno.EACCES), id="denied by a security module"),
        pytest.param(socket.gaierror(-2, "Name or service not known"), 1, "Name or service not known", id="no name"),
        pytest.param(OSError("a host has no such characters"), 1, "a host has no such characters", id="no host"),
    ],
)
def test_a_port_that_cannot_be_bound_is_said_with_what_to_do_next(error: OSError, port: int, said: str) -> None:
    assert why_not_bound(error, port, "admin_port") == said
