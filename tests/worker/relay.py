"""A TCP relay before a broker, which can stall and cut the connections of clients."""

import contextlib
import random
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Self

from amqtt_rest_bridge.mqtt.packets import Decoder, Publish
from amqtt_rest_bridge.mqtt.standard import MQTT_5

_CONNECT_SECONDS: Final = 5.0


@dataclass
class _Relayed:
    """A client's connection and the one to the broker; what it sends passes while `passes` is set.

    `sent`: what the broker has sent, also what did not pass.
    """

    connect: bytes
    sockets: tuple[socket.socket, socket.socket]
    passes: threading.Event = field(default_factory=threading.Event)
    lost: int = 0
    sent: bytearray = field(default_factory=bytearray)

    def cut(self) -> None:
        """End both connections; the broker still reads what has passed."""
        for sock, how in zip(self.sockets, (socket.SHUT_RDWR, socket.SHUT_WR), strict=True):
            with contextlib.suppress(OSError):
                sock.shutdown(how)
        self.passes.set()


class Relay:
    """Pass everything on, but for connections whose CONNECT holds the text given to `stall` or `cut`.

    `keeps`: whether to keep what the broker sends, for `published`.
    """

    def __init__(self, port: int, *, keeps: bool = False) -> None:
        self._broker = port
        self._keeps = keeps
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._relayed: list[_Relayed] = []
        self.cuts = 0
        """How often `disturbing` has cut connections."""
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    @property
    def lost(self) -> int:
        """Return how many bytes of clients were not passed on, because a cut came before."""
        return sum(one.lost for one in self._relayed)

    def published(self, client: bytes) -> Iterator[Publish]:
        """Return the messages that the broker sent to a client, connection by connection; needs `keeps`."""
        assert self._keeps
        for one in self._of(client):
            decoder = Decoder(MQTT_5)
            decoder.feed(bytes(one.sent))
            while (packet := decoder.next()) is not None:
                if isinstance(packet, Publish):
                    yield packet

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()  # a client may just have connected
        for one in self._relayed:
            one.cut()
            for sock in one.sockets:
                sock.close()

    def stall(self, client: bytes = b"") -> None:
        """Pass nothing more on for these clients, either way; their connections stay open."""
        for one in self._of(client):
            one.passes.clear()

    def resume(self) -> None:
        """Pass everything on again."""
        for one in self._relayed:
            one.passes.set()

    def cut(self, client: bytes = b"") -> None:
        """End the connections of these clients; they may connect again."""
        for one in self._of(client):
            one.cut()

    @contextlib.contextmanager
    def disturbing(self, seconds: float, *clients: bytes) -> Iterator[None]:
        """Stall connections of these clients in turns, one or all of them, and cut half of those, until the end."""
        chance, ended = random.Random(5), threading.Event()

        def disturb() -> None:
            while not ended.wait(seconds):
                known = [one for one in self._relayed if any(client in one.connect for client in clients)]
                chosen = known if chance.random() < 0.3 else known[-chance.randrange(1, 8) :][:1]
                for one in chosen:
                    one.passes.clear()
                ended.wait(seconds * chance.random())
                cut = [one for one in chosen if chance.random() < 0.5]
                self.cuts += bool(cut)
                for one in chosen:
                    one.cut() if one in cut else one.passes.set()

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _of(self, client: bytes) -> list[_Relayed]:
        found = [one for one in self._relayed if client in one.connect]
        assert found
        return found

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                self._relay(client)
            except OSError:  # of this client: others are served all the same
                client.close()

    def _relay(self, client: socket.socket) -> None:
        client.settimeout(_CONNECT_SECONDS)
        connect = client.recv(65_536)
        client.settimeout(None)
        broker = socket.create_connection(("127.0.0.1", self._broker))
        relayed = _Relayed(connect, (client, broker))
        relayed.passes.set()
        self._relayed.append(relayed)
        broker.sendall(connect)
        for ends in ((client, broker), (broker, client)):
            threading.Thread(target=self._pass, args=(*ends, relayed), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, relayed: _Relayed) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if self._keeps and source is relayed.sockets[1]:
                    relayed.sent += data
                relayed.passes.wait()
                try:
                    target.sendall(data)
                except OSError:
                    relayed.lost += len(data) * (source is relayed.sockets[0])
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
