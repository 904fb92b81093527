"""An HTTP server that costs next to nothing: answers a request's body, after a delay if asked. A process of its own.

`python -m tests.benchmarks.http_echo DELAY_SECONDS [PORT]` prints its port.
"""

import asyncio
import sys


class Echo(asyncio.Protocol):
    """Read requests with Content-Length, one after the other on a kept connection."""

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


async def main() -> None:
    """Serve until killed."""
    Echo.delay = float(sys.argv[1])
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
