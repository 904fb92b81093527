"""No connection keeps the broker from ending, whatever its client does."""

import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.benchmarks.mqtt_wire import Wire, connect_packet, publish_packet
from tests.support.commands import BRIDGE, Workplace


def come_and_go(port: int) -> list[socket.socket]:
    Wire(port, "polite").close()
    Wire(port, "rude").sock.close()
    for data in (b"", b"garbage"):
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.sendall(data)
    with socket.create_connection(("127.0.0.1", port)) as peer:  # resets the connection in the middle of its CONNECT
        peer.sendall(connect_packet("c")[:12])
        Wire(port, "meanwhile").close()  # so that the broker has read these
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    Wire(port, "later").close()
    return []


def stay(port: int) -> list[socket.socket]:
    return [Wire(port, "stays").sock]


def say_nothing(port: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]


def read_nothing(port: int) -> list[socket.socket]:
    deaf, publisher = Wire(port, "deaf"), Wire(port, "publisher")
    deaf.subscribe("large")
    for _ in range(20):
        publisher.send(publish_packet("large", bytes(1_000_000)))
    publisher.send(publish_packet("last", b"", 1))
    publisher.expect(0x40)
    return [deaf.sock, publisher.sock]


@pytest.mark.parametrize(
    ("loop", "bridged"),
    [
        pytest.param("uvloop", True, id="uvloop-bridge"),
        pytest.param("asyncio", True, id="asyncio-bridge"),
        pytest.param("asyncio", False, id="asyncio-no bridge"),
        pytest.param("uvloop", False, id="uvloop-no bridge", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("clients", [come_and_go, stay, say_nothing, read_nothing])
def test_sigterm_ends_a_broker_whatever_its_clients_do(
    tmp_path: Path, clients: Callable[[int], list[socket.socket]], loop: str, bridged: bool
) -> None:
    place = Workplace(tmp_path)
    if not bridged:
        place.configure((BRIDGE, ""))
    if loop == "asyncio":
        place.write("uvloop.py", "raise ImportError('not here')")
    with place.serving() as running:
        connected = clients(running.port)
        running.send(signal.SIGTERM)
        assert running.end() == 0
    assert any(line.endswith("Broker closed") for line in running.lines)
    if bridged or clients is read_nothing:
        assert "Traceback" not in "".join(running.lines)
    unread = [line for line in running.lines if "message(s) are dropped" in line]
    assert len(unread) == (clients is read_nothing)
    for sock in connected:
        sock.close()
