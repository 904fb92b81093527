"""Defect, amqtt 0.12.1: a listener cannot be bound to an IPv6 address, whose brackets amqtt keeps.

Mended: the address is bound without them.

Upstream: https://github.com/Yakifo/amqtt/pull/72 (open) parses such addresses.
"""

from typing import Any

from amqtt_rest_bridge.broker import amqtt_broker


def mend(broker: Any) -> None:
    """Bind IPv6 addresses."""

    def unbracketed(listen: amqtt_broker.Step) -> amqtt_broker.Step:
        async def listen_unbracketed(name: str, kind: Any, address: str | None, *others: Any) -> Any:
            return await listen(name, kind, bare(address), *others)

        return listen_unbracketed

    amqtt_broker.replace(broker, amqtt_broker.Steps.LISTEN, unbracketed)


def bare(address: str | None) -> str | None:
    """Return the address of a listener's `bind` as it can be bound; None for all addresses."""
    return (address and address.strip("[]")) or None
