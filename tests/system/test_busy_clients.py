"""Clients that send without a pause keep nothing from ending their connections: no shutdown, no successor."""

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.support.commands import Workplace

_CONNECT = b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x3c\x00\x02"
_CONNECTED = b"\x20\x02\x00\x00"
_CLIENTS = 6  # one that hung was enough
_PINGREQ = b"\xc0\x00"


def connected(port: int, client_id: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.settimeout(10)
    sock.sendall(_CONNECT + client_id)
    assert sock.recv(4) == _CONNECTED
    return sock


@contextlib.contextmanager
def busy_clients(port: int) -> Iterator[None]:
    """Ping on so many connections, the next thousand once those before are answered, until the broker ends them."""

    def ping(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock.sendall(_PINGREQ * 1000)
                left = 2 * 1000
                while left:
                    data = sock.recv(left)
                    if not data:
                        return
                    left -= len(data)

    socks = [connected(port, f"{number:02}".encode()) for number in range(_CLIENTS)]
    threads = [threading.Thread(target=ping, args=(sock,)) for sock in socks]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for sock, thread in zip(socks, threads, strict=True):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            thread.join()
            sock.close()


def test_a_broker_shuts_down_although_clients_send_all_the_time(tmp_path: Path) -> None:
    with Workplace(tmp_path).serving() as broker, busy_clients(broker.port):
        broker.send(signal.SIGTERM)
        assert broker.end() == 0, broker.lines


def test_a_client_takes_over_the_session_of_one_that_sends_all_the_time(tmp_path: Path) -> None:
    with Workplace(tmp_path).serving() as broker:
        port = broker.port
        with busy_clients(port):
            for number in range(_CLIENTS):
                connected(port, f"{number:02}".encode()).close()
