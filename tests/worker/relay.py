"""A TCP relay before a broker, which can stall the connections of one client."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Relay:
    """Pass everything on, but for connections whose CONNECT holds the text given to `stall`."""

    def __init__(self, port: int) -> None:
        self._broker = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._clients: list[tuple[bytes, threading.Event]] = []

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.resume()
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def stall(self, client: bytes) -> None:
        """Pass nothing more on for these clients, either way; their connections stay open."""
        stalled = [goes for connect, goes in self._clients if client in connect]
        assert stalled
        for goes in stalled:
            goes.clear()

    def resume(self) -> None:
        """Pass everything on again."""
        for _, goes in self._clients:
            goes.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self._broker))
                self._sockets += [client, broker]
                connect, goes = client.recv(65_536), threading.Event()
                goes.set()
                self._clients.append((connect, goes))
                broker.sendall(connect)
                for ends in ((client, broker), (broker, client)):
                    threading.Thread(target=self._pass, args=(*ends, goes), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, goes: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                goes.wait()
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
