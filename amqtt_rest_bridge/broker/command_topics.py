"""`CommandTopics`: who may command in amqtt, and who may listen. The broker's loop only.

Below `$SYS/Coreflux` the setting decides, not the ACL. A client is one of its users when an authentication plugin has
accepted its password, or whatever that plugin asks for, under that name: amqtt's plugin for anonymous clients accepts
any name. What others publish there goes amqtt's own way, which drops every `$` topic.
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
    """Keep the topics of commands to their users.

    Args:
        broker: An amqtt broker whose constructor runs, or has run.
        users: The names.
        receive: Called with the payload of each command.
    """

    def __init__(self, broker: Any, users: Collection[str], receive: Callable[[bytes], None]) -> None:
        self._broker = broker
        self._users = frozenset(users)
        self._receive = receive
        amqtt_broker.replace(broker, Steps.DELIVER, self._taking)
        amqtt_broker.replace(broker, Steps.DECIDE, self._deciding)
        amqtt_broker.replace(broker, Steps.PUBLISH_RETAINED, self._hiding)

    def begin(self) -> None:
        """Note who connects; once all plugins are constructed."""
        amqtt_broker.note_authentication(self._broker, _note)

    def _is_user(self, session: Session) -> bool:
        known_as = session.attributes.get(_KNOWN_AS)
        return known_as in self._users and known_as == session.username

    def _taking(self, deliver: amqtt_broker.Step) -> amqtt_broker.Step:
        async def taking(session: Session, handler: Any, waiter: "asyncio.Future[Any]") -> Any:
            message = waiter.result()
            if message is None or message.topic != COMMAND_TOPIC or not self._is_user(session):
                return await deliver(session, handler, waiter)
            self._receive(bytes(message.data or b""))
            return True

        return taking

    def _deciding(self, decide: amqtt_broker.Step) -> amqtt_broker.Step:
        async def deciding(session: Session, topic: str, action: Action) -> Any:
            if not (topic.startswith("$") and is_below(topic)):
                return await decide(session, topic, action)
            # What waits for a client that is away would be sent to the next client with its id.
            is_there = action is not Action.RECEIVE or session.transitions.is_connected()
            return is_there and self._is_user(session)

        return deciding

    def _hiding(self, publish: amqtt_broker.Step) -> amqtt_broker.Step:
        async def hiding(subscription: tuple[str, int], session: Session) -> None:
            if subscription[0].startswith("$") and not self._is_user(session):
                await amqtt_broker.publish_retained_without(self._broker, _BELOW, subscription, session)
            else:
                await publish(subscription, session)

        return hiding


def is_below(topic: str) -> bool:
    """Return whether a topic, or a filter, is one of the commands' topics; a filter that has others too is not.

    A filter such as `$SYS/#` is granted as the ACL says, and brings nothing of these topics.
    """
    if topic.startswith(_SHARED):
        topic = topic.removeprefix(_SHARED).partition("/")[2]
    return topic == ROOT or topic.startswith(_BELOW)


def _note(session: Session, is_known: bool) -> None:  # a hook's result
    session.attributes[_KNOWN_AS] = session.username if is_known else None
