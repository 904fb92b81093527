"""HTTP servers that the bridge calls, each a process of its own.

    python -m tests.benchmarks.target echo DELAY_SECONDS PORT
    python -m tests.benchmarks.target faulty PORT SEED

`echo` prints its port; with 0 it takes a free one.
"""

import asyncio
import contextlib
import random
import struct
import sys
from socket import SO_LINGER, SOL_SOCKET

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Echo(asyncio.Protocol):
    """Answers the body of each request, after a delay if asked; costs next to nothing."""

    delay = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            head = self.data[:end].lower()
            at = head.find(b"\r\ncontent-length:")
            length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.data) < end + 4 + length:
                return
            body = self.data[end + 4 : end + 4 + length]
            self.data = self.data[end + 4 + length :]
            answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            if self.delay:
                asyncio.get_running_loop().call_later(self.delay, self.transport.write, answer)
            else:
                self.transport.write(answer)


async def echo(delay: float, port: int) -> None:
    """Serve until killed."""
    Echo.delay = delay
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Faulty:
    """Answers, refuses, hangs, resets, fails, drips or says too much, at random; now and then its port is closed."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._random = random.Random(seed)

    async def serve(self) -> None:
        """Serve until killed."""
        while True:
            server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
            await asyncio.sleep(self._random.uniform(2, 6))
            server.close()
            await asyncio.sleep(self._random.uniform(0.2, 2))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n", 1)[0])
                await reader.readexactly(length)
                await self._answer(writer)
                await writer.drain()
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        kinds = {"ok": 80, "error": 6, "hang": 2, "reset": 4, "drip": 2, "huge": 3, "close": 3}
        match self._random.choices(list(kinds), list(kinds.values()))[0]:
            case "ok":
                writer.write(_OK)
            case "error":
                writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
            case "hang":
                await asyncio.sleep(5)
                writer.close()
            case "reset":
                writer.write(_OK[:20])
                writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
                writer.close()
            case "drip":
                for byte in _OK:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.1)
            case "huge":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 400000\r\n\r\n" + b"x" * 400_000)
            case _:
                writer.close()


if __name__ == "__main__":
    if sys.argv[1] == "echo":
        asyncio.run(echo(float(sys.argv[2]), int(sys.argv[3])))
    else:
        asyncio.run(Faulty(int(sys.argv[2]), int(sys.argv[3])).serve())
