"""An HTTP server that misbehaves at random: answers, refuses, hangs, resets, fails, drips or says too much.

`python -m tests.benchmarks.faulty_target PORT SEED`; a process of its own.
"""

import asyncio
import contextlib
import random
import struct
import sys
from socket import SO_LINGER, SOL_SOCKET

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Target:
    """One behaviour for each request; now and then the port is closed for a while."""

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
        kind = self._random.choices(("ok", "error", "hang", "reset", "drip", "huge", "close"), (80, 6, 2, 4, 2, 3, 3))[
            0
        ]
        match kind:
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
    asyncio.run(Target(int(sys.argv[1]), int(sys.argv[2])).serve())
