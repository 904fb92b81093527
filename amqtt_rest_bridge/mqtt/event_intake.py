"""Calls the events of the messages of one session of the private endpoint, and acknowledges each. The event loop only.

`mqtt.connection` has read them, and `engine.client_mode` runs the calls. Each subscription is for one client event,
which its identifier names. `main` is the session of all routes that are not lossless; each lossless route has a session
of its own. They differ in what happens to a message if the bridge dies:

| | `main` | lossless |
|---|---|---|
| a message | comes once, with the identifiers of all its events | comes for each event, with the key of its row |
| it comes again to a new bridge | each event fails with `bridge_restarted` | it is called again, with the same key |
| its event is gone | it is acknowledged | it is not acknowledged, and stays on disk |

A message with a key in `main` is on disk, too: its route was lossless when it came. It is treated as a lossless one.
"""

import asyncio
import json
import logging
import time
from collections.abc import Collection, Mapping
from typing import Final, Protocol

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.lot.model import EventName, Message
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.intake import MessageSession, MqttDelivery, hops_of, time_of
from amqtt_rest_bridge.mqtt.packets import Publish
from amqtt_rest_bridge.mqtt.private import AGAIN, KEY, REFUSED, TIME
from amqtt_rest_bridge.mqtt.standard import Property
from amqtt_rest_bridge.mqtt.values import Broker, ClientSession, Subscription
from amqtt_rest_bridge.times import LineLimit
from amqtt_rest_bridge.topics import loggable

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.02
_WARN_SECONDS: Final = 60.0  # between two warnings of a session
_RESTARTED: Final = "the bridge process ended while it held this message; the request may or may not have been sent"


class RunsEvents(Protocol):
    """What a session needs of `ClientMode`."""

    def run_event(
        self, name: EventName, message: Message, delivery: MqttDelivery, *, hops: int, size: int
    ) -> object | None:
        """Call an event with a message; return None if the event is gone."""

    def fail_event(
        self, name: EventName, message: Message, failure: CallError, delivery: MqttDelivery, *, hops: int
    ) -> None:
        """End a message for an event with a failure."""

    def drop_calls(self) -> None:
        """Drop the calls that have not begun and whose delivery `is_dropped`."""


class EventIntake(MessageSession):
    """One session of the private endpoint.

    Args:
        broker: The endpoint.
        session: The client; its Receive Maximum bounds what comes before it is acknowledged.
        calls: Calls the events.
        names: Events by subscription identifier, also those that a reload has removed or moved to another session.
        is_lossless: Whether the endpoint keeps the messages on disk until they are acknowledged.
    """

    def __init__(
        self,
        broker: Broker,
        session: ClientSession,
        calls: RunsEvents,
        names: Mapping[int, EventName],
        *,
        is_lossless: bool,
    ) -> None:
        super().__init__(broker, session)
        self._calls = calls
        self._names = names
        self._is_lossless = is_lossless
        self._wanted: dict[EventName, Subscription] = {}
        self._subscribed: dict[EventName, Subscription] = {}  # as the endpoint knows the session
        self._subscribing = asyncio.Lock()
        self._gave_back_on: MqttConnection | None = None  # with a message that is never acknowledged
        self._warnings = LineLimit(_WARN_SECONDS)

    # Subscriptions.

    def prepare(self, wanted: Mapping[EventName, Subscription], present: Collection[EventName]) -> set[EventName]:
        """Set what `subscribe` subscribes, and return the events of this session that are gone.

        `present` are the events of all sessions. Another session that subscribes an event of this one takes it over, so
        this one must not unsubscribe it.
        """
        self._wanted = dict(wanted)
        self._subscribed = {
            name: one for name, one in self._subscribed.items() if name in wanted or name not in present
        }
        return self._subscribed.keys() - wanted

    async def subscribe(self) -> None:
        """Subscribe what has changed, then unsubscribe what is gone; without a connection, on the next one."""
        if self.client.connection is not None:
            await self._subscribe(self.client.connection)

    async def connected(self, connection: MqttConnection) -> None:
        """Subscribe, unless the session is paused."""
        if not connection.granted.session_present:
            self._subscribed = {}
            self.unacknowledged.clear()
        if self.is_paused:
            connection.pause()
        else:
            await self._subscribe(connection)

    async def _subscribe(self, connection: MqttConnection) -> None:
        async with self._subscribing:
            while missing := {name: one for name, one in self._wanted.items() if self._subscribed.get(name) != one}:
                await connection.subscribe(missing.values())
                self._subscribed |= missing
            while gone := {name: one for name, one in self._subscribed.items() if name not in self._wanted}:
                await connection.unsubscribe(gone.values())
                self._subscribed = {name: one for name, one in self._subscribed.items() if name not in gone}

    # Messages.

    def receive(self, connection: MqttConnection, received: Publish) -> None:
        """Accept a message, unless it came before and its calls go on."""
        if not self.note_redelivery(connection, received):
            self.accept(connection, received)

    def accept(self, connection: MqttConnection, received: Publish) -> None:
        """Call the events of a message; end one that was refused, or came before a restart, with that failure."""
        user = dict(received.properties.get(Property.USER_PROPERTY, ()))
        is_on_disk = KEY in user  # also in `main`, where a reload has made a lossless route another one
        delivery = MqttDelivery(
            self, connection, received, is_bounded=self._is_lossless or is_on_disk, has_key=is_on_disk
        )  # fmt: skip
        self.add(delivery)
        delivery.hold()
        now = time.time()
        again = None if AGAIN not in user else time_of(user.get(AGAIN), now)
        message = Message(received.topic, received.payload, time_of(user.get(TIME), now), None, again)
        # Its properties are the endpoint's: they count neither for OVERLOAD_BYTES nor in the status.
        hops, size, failure = hops_of(received.properties), len(received.payload), failure_of(user)
        if failure is None and received.duplicate and not delivery.is_bounded:
            failure = catalogue.BRIDGE_RESTARTED.error(_RESTARTED)
        is_taken = failure is not None
        for name in self._events_of(received):
            try:
                if failure is not None:
                    self._calls.fail_event(name, message, failure, delivery, hops=hops)
                elif self._calls.run_event(name, message, delivery, hops=hops, size=size) is not None:
                    is_taken = True
            except Exception:  # no message keeps the next one from being read
                log.exception("route %s, event %s: a message was not looked at", *name)
        if not is_taken and self._warnings.count():
            what = "it stays on disk" if delivery.is_bounded else "it is dropped"
            topic = loggable(received.topic)
            log.warning("%s: the event of a message on %s is gone; %s", self.client_id, topic, what)
        if not is_taken and delivery.is_bounded:
            delivery.abandon()  # the endpoint keeps it
        else:
            delivery.release()

    def end_message(self, delivery: MqttDelivery) -> None:
        """Acknowledge a message. An abandoned one that was not sent again stays with the endpoint."""
        super().end_message(delivery)
        if delivery.is_abandoned and not (delivery.came_after_drop and delivery.connection.is_open):
            self.remove(delivery)
            self._gave_back_on = delivery.connection

    def mark(self, delivery: MqttDelivery, event: EventName) -> str:
        """Return the item of `private.ENDS` for a message of `main`.

        It is empty for a lossless message, which is called again anyway, and for a refused one, which has QoS 0.
        """
        received = delivery.received
        if not delivery.is_bounded and received.packet_id is not None:
            for number in received.properties.get(Property.SUBSCRIPTION_IDENTIFIER, ()):
                if self._names.get(number) == event:
                    return f"{self.client_id} {received.packet_id} {number}"
        return ""

    def _events_of(self, received: Publish) -> list[EventName]:
        identifiers = received.properties.get(Property.SUBSCRIPTION_IDENTIFIER, ())
        return [self._names[number] for number in identifiers if number in self._names]

    # What is given up.

    async def give_up(self, gone: Collection[EventName]) -> None:
        """Leave messages of lossless events that are gone with the endpoint, once requests that run have ended.

        Calls that have not begun are dropped at once. At the end the session connects again, since messages that are
        not acknowledged would count against Receive Maximum for ever.
        """
        left = [one for one in self.unacknowledged.values() if not set(self._events_of(one.received)).isdisjoint(gone)]
        for delivery in left:
            delivery.is_dropped = not delivery.has_ended
        self._calls.drop_calls()
        while self.client.connection is None or not all(delivery.has_ended for delivery in left):
            await asyncio.sleep(_LOOK_SECONDS)
        if self._gave_back_on is self.client.connection:
            await self.client.connect_again(self.client.connection)


def failure_of(user: Mapping[str, str]) -> CallError | None:
    """Return the failure with which the endpoint has refused a message, by its user properties; None for others."""
    if REFUSED not in user:
        return None
    code, sentence, hint = json.loads(user[REFUSED])
    return CallError(FailureCode(code), sentence, hint)
