"""Publishes to the broker: results, failures, requests of server mode, statuses and notices. The event loop only.

The engine hands publications over, and `connection` sends them. All that a bridge publishes goes on one connection,
with QoS 1 unless an event says another one. A publication counts as published with its PUBACK (QoS 2: PUBCOMP); until
then it is published again on the next connection. There are three exceptions:

- A request of server mode is not published again: its caller gets an error, and asks again.
- What the broker refuses is dropped.
- A publication for which the broker ends connections is dropped (`MqttPublisher.lose_connection`).
"""

import asyncio
import logging
from collections import deque
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from amqtt_rest_bridge.errors import BrokerAwayError, NoRoomError, PublicationRefusedError
from amqtt_rest_bridge.lot.model import MessageProperties, Publication
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.packets import of_text, of_variable, write_properties
from amqtt_rest_bridge.mqtt.private import ENDS, OWN, QOS
from amqtt_rest_bridge.mqtt.standard import Property
from amqtt_rest_bridge.mqtt.values import BrokerError
from amqtt_rest_bridge.times import LineLimit
from amqtt_rest_bridge.topics import check_topic_name, loggable

log = logging.getLogger(__name__)

HOPS: Final = "rest-bridge-hops"
"""The user property that counts the routes which a message has passed through."""
_LOOK_SECONDS: Final = 0.01
_LOG_SECONDS: Final = 1.0
_AWAY_SECONDS: Final = 2.0  # how long `settled` waits for a broker that is away
# A publication that is not tried again expires so many seconds after `publish`:
_ROOM_SECONDS: Final = 1.0  # if it could not be sent
_ACKNOWLEDGED_SECONDS: Final = 10.0  # if it was sent, but not acknowledged
_EXPIRE_SECONDS: Final = 0.25  # between two looks at such publications
_MOST_LOSSES: Final = 2  # if so many connections end while a publication is under way, it is then sent alone
# A publication may be the reason why connections end. Each time that a connection ends while it alone is under way, it
# gets a point, or 4 if the broker says that it refuses a packet. With 8 points it is dropped.
_POINTS_IF_REFUSED: Final = 4
_MOST_POINTS: Final = 8


class _Sending(Struct, eq=False):
    """A publication that waits, or was sent and not acknowledged (it is under way)."""

    publication: Publication
    hops: int
    answer: asyncio.Future[None] | None = None  # what its caller awaits, None for an announcement
    expires_at: float | None = None  # time of the loop; None for a publication that is tried again until it succeeds
    retained_for: int = 0  # seconds that the broker keeps it, 0: no limit
    is_own: bool = False  # marked with `OWN`
    mark: str = ""  # tells the private endpoint which messages end with it
    losses: int = 0  # how many connections have ended while it was under way
    points: int = 0  # for connections that have ended while it was alone, see `_MOST_POINTS`

    @property
    def is_given_up(self) -> bool:
        """Return whether its caller no longer waits for it."""
        return self.answer is not None and self.answer.done()

    def end(self, error: Exception | None = None) -> None:
        """Answer the caller, if one waits for it: it was published, or there is an error."""
        if self.answer is None or self.answer.done():
            return
        if error is None:
            self.answer.set_result(None)
        else:
            self.answer.set_exception(error)


class MqttPublisher:
    """Publishes while there is a connection, and keeps what waits for one.

    The queue is bounded by the callers: each caller of `publish` waits for its own publication.

    Args:
        is_private: Whether connections are to the plugin's private endpoint. It passes statuses and answers to commands
            on because they are marked with `private.OWN`; other brokers have an ACL.
    """

    def __init__(self, *, is_private: bool = False) -> None:
        self._is_private = is_private
        self._connection: MqttConnection | None = None
        self._waiting: deque[_Sending] = deque()
        self._under_way: dict[_Sending, None] = {}
        # So many of the next publications are sent one at a time: one of them may be the reason why connections end.
        self._suspect_count = 0
        self._drops = LineLimit(_LOG_SECONDS)
        self._expiring: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of its first publication

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection."""
        return self._connection is not None

    def publish(
        self,
        publication: Publication,
        *,
        hops: int,
        route: str = "",  # noqa: ARG002  # of `Publishes`
        wait: bool = True,
        mark: str = "",
        is_own: bool = False,
    ) -> asyncio.Future[None]:
        """Publish, and return once the broker has acknowledged it; see `engine.needs.Publishes`.

        `wait`: it waits for the broker, and is sent again until it succeeds. Without it, errors end it, see below.
        `is_own`: the bridge itself publishes it, not a route.

        Raises:
            BrokerAwayError: Without `wait`: there is no connection, it ends before the acknowledgement, or that has not
                come within 10 s.
            NoRoomError: Without `wait`: it could not be sent within a second.
            PublicationRefusedError: The broker refuses it, or it can be published nowhere.
        """
        loop = self._loop = self._loop or asyncio.get_running_loop()
        answer = loop.create_future()
        sending = _Sending(publication, hops, answer, is_own=self._is_private and is_own, mark=mark)
        fault = check_topic_name(publication.topic)
        if fault is not None:
            self._drop(sending, f"the topic {fault}")
        elif not wait and self._connection is None:
            sending.end(BrokerAwayError("the broker is away"))
        else:
            if not wait:
                sending.expires_at = loop.time() + _ROOM_SECONDS
                if self._expiring is None:
                    self._expiring = loop.call_later(_EXPIRE_SECONDS, self._expire)
            self._waiting.append(sending)
            self.resume()
        return answer

    def announce(self, publication: Publication, *, seconds: int = 0) -> None:
        """Publish a record or a status without an answer. The broker drops it after so many seconds (0: never)."""
        seconds = seconds if publication.payload else 0
        self._waiting.append(_Sending(publication, 1, retained_for=seconds, is_own=self._is_private))
        self.resume()

    async def settled(self, seconds: float) -> int:
        """Wait until the broker has acknowledged all publications; return how many are left after `seconds`.

        While the broker is away, this waits two seconds at most.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while self._waiting or self._under_way:
            most = seconds if self._connection is not None else min(seconds, _AWAY_SECONDS)
            if loop.time() - began >= most:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        return len(self._waiting) + len(self._under_way)

    def use_connection(self, connection: MqttConnection) -> None:
        """Publish on this connection from now on."""
        self._connection = connection
        self.resume()

    def resume(self) -> None:
        """Publish what waits, as far as the broker and the socket take it."""
        while self._waiting and self._connection is not None and self._connection.can_publish:
            if self._suspect_count and self._under_way:
                return
            sending = self._waiting.popleft()
            if sending.answer is None or not sending.answer.done():  # else its caller is gone
                self._send(self._connection, sending)

    def lose_connection(self, why: str, *, refused: bool = False) -> None:
        """Keep publications that the broker has not acknowledged for the next connection.

        One of them may be the reason why the connection has ended. To find it, they are then sent one at a time: if the
        broker has refused a packet, or if two connections in a row have ended with them. A publication that is alone
        when connections keep ending is dropped.

        Args:
            why: Why the connection has ended.
            refused: Whether the broker said that it refuses a packet. It does not say which packet, and some brokers
                say nothing.
        """
        self._connection = None
        under_way, again = list(self._under_way), [*self._under_way, *self._waiting]
        self._under_way, self._waiting = {}, deque()
        for sending in under_way:
            sending.losses += 1
        if refused or any(sending.losses >= _MOST_LOSSES for sending in under_way):
            self._suspect_count = max(self._suspect_count, sum(sending.expires_at is None for sending in under_way))
        if len(under_way) == 1:
            under_way[0].points += _POINTS_IF_REFUSED if refused else 1
        for sending in again:
            if sending.expires_at is not None:
                sending.end(BrokerAwayError("the connection to the broker was lost"))
            elif sending.points >= _MOST_POINTS:
                self._suspect_count = max(0, self._suspect_count - 1)
                self._drop(sending, f"each connection on which it is sent ends: {why}")
            else:
                self._waiting.append(sending)

    def _send(self, connection: MqttConnection, sending: _Sending) -> None:
        """Send a publication, or drop it if MQTT or the broker has no room for it."""
        publication = sending.publication

        def on_answer(why: str | None) -> None:  # not called after the connection has ended: see `lose_connection`
            del self._under_way[sending]
            if self._suspect_count:
                self._suspect_count -= 1
            if why is None:
                sending.end()
            else:
                self._drop(sending, f"the broker answers {why}")
            self.resume()

        qos = 1 if publication.qos is None else publication.qos
        if self._is_private:
            pairs = _private_pairs(sending.hops, publication.qos, is_own=sending.is_own)
            if sending.mark:
                pairs += _user_property(ENDS, sending.mark)
            properties, qos = of_variable(len(pairs)) + pairs, 1
        else:
            properties = _written_properties(publication.properties, sending.hops, sending.retained_for)
        try:
            connection.publish(
                publication.topic, publication.payload, on_answer, qos=qos, retain=publication.retain,
                properties=properties,
            )  # fmt: skip
        except (BrokerError, ValueError) as error:  # properties that MQTT has no room for
            self._suspect_count = max(0, self._suspect_count - 1)
            self._drop(sending, str(error))
            return
        self._under_way[sending] = None
        if sending.expires_at is not None:
            sending.expires_at += _ACKNOWLEDGED_SECONDS - _ROOM_SECONDS

    def _drop(self, sending: _Sending, why: str) -> None:
        """Answer that a publication is refused. Without a caller log it."""
        what = f"not published on {loggable(sending.publication.topic)}: {why}"
        sending.end(PublicationRefusedError(what))
        if sending.answer is None and (count := self._drops.count()):
            log.error("%s%s", what, f" ({count} since the last such line)" if count > 1 else "")

    def _expire(self) -> None:
        """End publications that have expired, and check again later while others may expire."""
        loop = asyncio.get_running_loop()
        now, has_more = loop.time(), False
        unacknowledged = f"the broker has not acknowledged it within {_ACKNOWLEDGED_SECONDS:.0f} s"
        for sendings, error in (
            (self._waiting, NoRoomError("the broker takes no more now")),
            (self._under_way, BrokerAwayError(unacknowledged)),
        ):
            for sending in sendings:
                if sending.expires_at is not None and sending.expires_at <= now:
                    sending.end(error)
                has_more = has_more or (sending.expires_at is not None and not sending.is_given_up)
        self._waiting = deque(sending for sending in self._waiting if not sending.is_given_up)
        self._expiring = loop.call_later(_EXPIRE_SECONDS, self._expire) if has_more else None


@lru_cache(maxsize=64)
def _written_properties(properties: MessageProperties | None, hops: int, expires: int) -> bytes:
    """Return the encoded properties of a publication; cached, since most have the same.

    `hops`: how many routes its message has passed through. `expires`: seconds until the broker drops it, 0 for never.
    """
    found: dict[Property, Any] = {Property.USER_PROPERTY: ((HOPS, str(hops)),)}
    if properties is not None:
        found[Property.USER_PROPERTY] += properties.user
        if properties.response_topic is not None:
            found[Property.RESPONSE_TOPIC] = properties.response_topic
        if properties.correlation is not None:
            found[Property.CORRELATION_DATA] = properties.correlation
    if expires:
        found[Property.MESSAGE_EXPIRY_INTERVAL] = expires
    return write_properties(found)


@lru_cache(maxsize=64)
def _private_pairs(hops: int, qos: int | None, *, is_own: bool) -> bytes:
    """Return the encoded user properties for the private endpoint, without those of the message: amqtt has none."""
    pairs = _user_property(HOPS, str(hops))
    if qos is not None:
        pairs += _user_property(QOS, str(qos))
    if is_own:
        pairs += _user_property(OWN, "")
    return pairs


def _user_property(name: str, value: str) -> bytes:
    return Property.USER_PROPERTY.to_bytes() + of_text(name) + of_text(value)
