"""The MQTT client of `rest-bridge replay`: receives failures, publishes messages again. Main thread, its own loop."""

import asyncio
import time
from collections.abc import Sequence

from amqtt_rest_bridge.broker.status_client import BrokerAddress, BrokerUnavailableError, connected, receive
from amqtt_rest_bridge.model import Publication
from amqtt_rest_bridge.topics import filter_matches


def collect(address: BrokerAddress, topic_filter: str, seconds: float) -> list[bytes]:
    """Return the payloads that come on a topic filter within `seconds`, retained ones too; blocks.

    Raises:
        BrokerUnavailableError: The broker cannot be reached, refuses us, or closes the connection.
    """
    return asyncio.run(_collect(address, topic_filter, seconds))


def publish(address: BrokerAddress, publications: Sequence[Publication], seconds: float) -> None:
    """Publish with QoS 1, `seconds` apart, each once the broker has acknowledged the one before; blocks.

    Raises:
        BrokerUnavailableError: As `collect`; the message says how many were published.
    """
    asyncio.run(_publish(address, publications, seconds))


async def _collect(address: BrokerAddress, topic_filter: str, seconds: float) -> list[bytes]:
    payloads: list[bytes] = []
    async with connected(address, [topic_filter], qos=1) as client:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            message = await receive(client, address, left)
            # amqtt 0.12 sends a client that connects retained messages of other clients' subscriptions too
            if message is not None and filter_matches(topic_filter, message.topic):
                payloads.append(bytes(message.data or b""))
    return payloads


async def _publish(address: BrokerAddress, publications: Sequence[Publication], seconds: float) -> None:
    done = 0
    async with connected(address, []) as client:
        try:
            for publication in publications:
                started = time.monotonic()
                async with asyncio.timeout(_ACKNOWLEDGED_SECONDS):
                    await client.publish(publication.topic, publication.payload, qos=1)
                done += 1
                await asyncio.sleep(max(0.0, started + seconds - time.monotonic()))
        except (OSError, TimeoutError) as error:
            raise BrokerUnavailableError(
                f"{address.shown} did not acknowledge a message; {done} of {len(publications)} were published"
            ) from error


_ACKNOWLEDGED_SECONDS = 10.0
