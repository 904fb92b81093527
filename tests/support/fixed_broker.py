"""A broker that is always at the same address."""

from dataclasses import dataclass

from amqtt_rest_bridge.mqtt.values import Address


@dataclass(frozen=True, slots=True)
class FixedBroker:
    """A broker with an address that never changes."""

    address: Address
