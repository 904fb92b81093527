"""Defect, amqtt 0.12.1: a last will is sent to any topic, even below `$SYS`, without asking the ACL.

Mended: a will is sent if its client is permitted to publish on its topic.

Upstream: no issue is known.
"""

import asyncio
import logging
from typing import Any, Final

from amqtt.session import Session

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.topics import check_topic_name, loggable

log = logging.getLogger(__name__)

_ACL_SECONDS: Final = 10.0  # how long the end of a connection waits for the ACL


async def send(broker: Any, owner: Session) -> None:
    """Send the will of a client whose connection ended without DISCONNECT; retain it if the client asked for that."""
    if not await _is_permitted(broker, owner):
        log.info("%s may not publish on %s: its will is not sent", _name(owner), loggable(owner.will_topic or ""))
        return
    will = (owner, owner.will_topic, owner.will_message, owner.will_qos)
    await amqtt_broker.broadcast(broker, *will)
    if owner.will_retain:
        await broker.retain_message(*will)


async def _is_permitted(broker: Any, session: Session) -> bool:
    topic = session.will_topic or ""
    if topic.startswith("$") or check_topic_name(topic) is not None:
        return False
    try:
        async with asyncio.timeout(_ACL_SECONDS):
            return await amqtt_broker.may_publish(broker, session, topic)
    except Exception:
        log.exception("the ACL did not answer whether %s may publish on %s", _name(session), loggable(topic))
        return False


def _name(session: Session) -> str:
    return loggable(session.client_id or "")
