"""Sessions of a version that had balanced routes in the session of realtime ones, and numbered slots."""

import threading
from collections import Counter

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from amqtt_rest_bridge.worker.intake import Feed
from tests.support.http_target import Target, echo
from tests.support.waiting import eventually
from tests.worker.mosquitto import SECONDS, Mosquitto
from tests.worker.workers import Group, client_route

pytestmark = pytest.mark.mosquitto

REALTIME = 'WITH OVERLOAD_POLICY "realtime"'


def leave_session(port: int, client_id: str, *filters: str) -> None:
    """Leave a kept session with subscriptions, and their identifiers, as the former version did."""
    answered = threading.Semaphore(0)
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
    client.on_connect = client.on_subscribe = client.on_disconnect = lambda *_: answered.release()
    expiry = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    expiry.SessionExpiryInterval = 3600
    client.connect("127.0.0.1", port, clean_start=False, properties=expiry)
    client.loop_start()
    assert answered.acquire(timeout=SECONDS)
    for topic_filter in filters:
        identifier = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
        identifier.SubscriptionIdentifier = Feed(topic_filter, frozenset()).identifier
        client.subscribe(topic_filter, options=SubscribeOptions(qos=1), properties=identifier)
        assert answered.acquire(timeout=SECONDS)
    client.disconnect()
    assert answered.acquire(timeout=SECONDS)
    client.loop_stop()


@pytest.mark.parametrize("realtime", [pytest.param(True, id="beside realtime"), pytest.param(False, id="alone")])
def test_what_waits_in_a_former_session_is_called_once_and_its_subscriptions_are_given_up(
    group: Group, mosquitto: Mosquitto, realtime: bool
) -> None:
    with Target(echo) as target:
        group.routes(
            client_route("Shared", target.port, "in/#")
            + client_route("InOrder", target.port, "ordered/#", event='WITH ORDERED "true"')
            + (client_route("Live", target.port, "live/#", config=REALTIME) if realtime else "")
        )
        for slot in (0, 1):
            leave_session(mosquitto.port, f"plant-{slot}", "$share/plant/in/#", "ordered/#", "$share/plant/live/#")
        client = mosquitto.client()
        sent = 0

        def publish(count: int) -> None:
            nonlocal sent
            for number in range(sent, sent + count):
                client.publish(f"in/{number}", b"in %d" % number)
                client.publish(f"ordered/{number % 5}", b"ordered %d" % number)
            sent += count

        def are_called() -> bool:
            return len({seen.body for seen in list(target.requests)}) >= 2 * sent

        publish(40)
        worker = group.start(0).ready()
        eventually(are_called, "what waited was not called")
        for topic_filter in ("$share/plant/in/#", "ordered/#"):
            eventually(lambda wanted=topic_filter: mosquitto.log.count(f"plant-0 {wanted}") == 1)  # type: ignore[misc]
            eventually(lambda wanted=topic_filter: mosquitto.log.count(f"plant-1 {wanted}") == 1)  # type: ignore[misc]
        publish(40)
        if realtime:
            client.publish("live/1", b"live")
        eventually(are_called, "what came later was not called")
        assert worker.stop() == 0
        called = Counter(seen.body for seen in target.requests)
        assert set(called.values()) == {1}
        assert len(called) == 160 + realtime
        in_order = [int(seen.body[8:]) for seen in target.requests if seen.body.startswith(b"ordered")]
        by_topic = {topic: [number for number in in_order if number % 5 == topic] for topic in range(5)}
        assert all(numbers == sorted(numbers) for numbers in by_topic.values())
