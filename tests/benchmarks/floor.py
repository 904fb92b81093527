"""The floor of client mode: a plugin that copies from `in` to `out` in the hook, without HTTP."""

from amqtt.broker import BrokerContext
from amqtt.plugins.base import BasePlugin
from amqtt.session import ApplicationMessage


class CopyPlugin(BasePlugin[BrokerContext]):
    """Publish on `out` what arrives on `in`."""

    async def on_broker_message_broadcast(self, *, client_id: str, message: ApplicationMessage) -> None:
        """Copy a message."""
        if message.topic == "in":
            await self.context.broadcast_message("out", bytes(message.data))
