"""`CommandTopics`: which clients of amqtt may send commands, and listen to their topics. The broker's loop only.

Below `$SYS/Coreflux` the users of the setting `coreflux` decide, not the ACL. A client is one of them if an
authentication plugin has accepted its password, or whatever that plugin asks for, under that user name. amqtt's plugin
for anonymous clients does not count, since it accepts any name. amqtt drops what other clients publish there, as on
every `$` topic.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Final

from amqtt.contexts import Action
from amqtt.session import Session

from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.broker.amqtt_broker import Steps
from amqtt_rest_bridge.tools.commands.command import COMMAND_TOPIC, ROOT

_BELOW: Final = f"{ROOT}/"
_KNOWN_AS: Final = "rest_bridge.known_as"
_SHARED: Final = "$share/"


class CommandTopics:
    """Opens the topics of commands to their users only.

    Args:
        broker: An amqtt broker whose constructor runs, or has run.
        users: The names.
        receive: Called with the payload of each command.
    """

    def __init__(self, broker: Any, users: Collection[str], receive: Callable[[bytes], None]) -> None:
        self._broker = broker
        self._users = frozenset(users)
        self._receive = receive
        self._deliver_as_amqtt = amqtt_broker.replace(broker, Steps.DELIVER, self.deliver)
        self._decide_as_amqtt = amqtt_broker.replace(broker, Steps.DECIDE, self.decide)
        self._publish_as_amqtt = amqtt_broker.replace(broker, Steps.PUBLISH_RETAINED, self.publish_retained)

    def begin(self) -> None:
        """Note who connects; once all plugins are constructed."""
        amqtt_broker.note_authentication(self._broker, _KNOWN_AS)

    def _is_user(self, session: Session) -> bool:
        known_as = session.attributes.get(_KNOWN_AS)
        return known_as in self._users and known_as == session.username

    # What amqtt calls.

    async def deliver(self, session: Session, handler: Any, waiter: "asyncio.Future[Any]") -> Any:
        """Receive a command of a user; deliver any other message of a client."""
        message = waiter.result()
        if message is None or message.topic != COMMAND_TOPIC or not self._is_user(session):
            return await self._deliver_as_amqtt(session, handler, waiter)
        self._receive(bytes(message.data or b""))
        return True

    async def decide(self, session: Session, topic: str, action: Action) -> Any:
        """Return whether a client may use a topic: below `$SYS/Coreflux` its users may, elsewhere the ACL decides."""
        if not (topic.startswith("$") and is_below(topic)):
            return await self._decide_as_amqtt(session, topic, action)
        # What waits for a client that is away would be sent to the next client with its id.
        is_there = action is not Action.RECEIVE or session.transitions.is_connected()
        return is_there and self._is_user(session)

    async def publish_retained(self, subscription: tuple[str, int], session: Session) -> None:
        """Send what is retained for a filter, without the topics of commands unless the client is a user."""
        if subscription[0].startswith("$") and not self._is_user(session):
            await amqtt_broker.publish_retained_without(self._broker, _BELOW, subscription, session)
        else:
            await self._publish_as_amqtt(subscription, session)


def is_below(topic: str) -> bool:
    """Return whether a topic, or all topics of a filter, are topics of commands.

    A filter such as `$SYS/#` has others, too: the ACL decides about it, and it brings nothing of these topics.
    """
    if topic.startswith(_SHARED):
        topic = topic.removeprefix(_SHARED).partition("/")[2]
    return topic == ROOT or topic.startswith(_BELOW)
