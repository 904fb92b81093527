"""Floors: plugins that do what the bridge does on the broker's side, without HTTP; an HTTP app that does nothing."""

import asyncio
import socket

import falcon
import waitress
from amqtt.broker import BrokerContext
from amqtt.plugins.base import BasePlugin
from amqtt.session import ApplicationMessage


class CopyPlugin(BasePlugin[BrokerContext]):
    """Publish on `out` what arrives on `in`."""

    async def on_broker_message_broadcast(self, *, client_id: str, message: ApplicationMessage) -> None:
        """Copy a message."""
        if message.topic == "in":
            await self.context.broadcast_message("out", bytes(message.data))


class FeedPlugin(BasePlugin[BrokerContext]):
    """Publish on `out` as fast as one subscriber takes it: the floor of server mode."""

    async def on_broker_client_subscribed(self, *, client_id: str, topic: str, qos: int) -> None:
        """Begin when the subscriber is there."""
        self.feeding = asyncio.create_task(self._feed())

    async def _feed(self) -> None:
        while True:
            await self.context.broadcast_message("out", b"x" * 100)
            for _ in range(4):  # lets amqtt's broadcast loop keep up; without it nothing is ever sent
                await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop feeding."""
        self.feeding.cancel()


class Nothing:
    """A Falcon resource that does nothing."""

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Answer as server mode does."""
        req.bounded_stream.read()
        resp.media = {"status": "published", "topic": "out"}


if __name__ == "__main__":
    app = falcon.App()
    app.add_route("/hook", Nothing())
    sock = socket.create_server(("127.0.0.1", 0))
    print(sock.getsockname()[1], flush=True)
    waitress.serve(app, sockets=[sock], threads=4)
