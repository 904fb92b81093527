"""What the plugin and its bridge tell each other at the private endpoint, beside what MQTT 5 has words for.

The plugin serves the endpoint in the broker process (`broker.endpoint`); the bridge is its client (`group.alone`). Each
user property and topic here is read and written by these two alone. Neither may come from, or go to, another client.
"""

from dataclasses import dataclass, field
from typing import Final

from amqtt_rest_bridge.mqtt.values import Address

# User properties.

ROUTE: Final = "rest-bridge-route"
"""SUBSCRIBE, UNSUBSCRIBE: the route of the client event that the topic filter is for ..."""
EVENT: Final = "rest-bridge-event"
"""... and the event. The endpoint knows such a subscription by route and event, so several may have one filter."""
LOSSLESS: Final = "rest-bridge-lossless"
"""SUBSCRIBE: messages are kept on disk. `<messages> <bytes> <batch size, or 0> <batch seconds>`, the first two being
the most that the route holds."""
OWN: Final = "rest-bridge-own"
"""PUBLISH of the bridge: a status or an answer to a command, which may go to topics that are closed to routes."""
TIME: Final = "rest-bridge-time"
"""PUBLISH to the bridge: Unix time, in seconds, at which the broker got the message; without it, it is new."""
REFUSED: Final = "rest-bridge-refused"
"""PUBLISH to the bridge: `<code> <sentence>`, the failure with which its event ends the message. No call is made."""

# Topics.

READY_TOPIC: Final = "$rest-bridge/ready"
"""The bridge publishes it once all is subscribed: a JSON array with `[route, event]` of each of its subscriptions."""
BROKER_TOPIC: Final = "$rest-bridge/broker"
"""The endpoint publishes what the bridge has to know of the broker process: `group.alone.BrokerState` as JSON."""


@dataclass(frozen=True, slots=True)
class PrivateAddress:
    """Where the private endpoint listens; it can be pickled.

    `socket` is the path of a Unix socket. Where the system has none, it is None, and the endpoint listens on `host` and
    `port` and asks for `password`.
    """

    socket: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    password: str | None = field(default=None, repr=False)

    @property
    def address(self) -> Address:
        """Return it as the address of a broker."""
        return Address(
            self.host, self.port, None, self.password, None, "the private endpoint of the broker", socket=self.socket
        )
