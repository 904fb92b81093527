"""Clients as people use them publish, have all acknowledged and disconnect: all of it is called and delivered."""

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from typing import Any, Final

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.embedded_broker import hosting
from tests.support.http_recorder import Recorder
from tests.support.publishing import TOPIC, await_requests, flooded, listening, numbered, route
from tests.support.waiting import SECONDS

MOSQUITTO_PUB: Final = shutil.which("mosquitto_pub")
ALL: Final = {"anonymous": ["#"]}
ACL: Final = {
    "amqtt.plugins.topic_checking.TopicAccessControlListPlugin": {"publish_acl": ALL, "acl": ALL},
}


def with_mosquitto_pub(port: int, payloads: list[bytes]) -> None:
    assert MOSQUITTO_PUB is not None
    command = [MOSQUITTO_PUB, "-p", str(port), "-V", "mqttv311", "-q", "1", "-t", TOPIC, "-l"]
    subprocess.run(command, input=b"\n".join(payloads) + b"\n", check=True, timeout=4 * SECONDS)


def with_paho(port: int, payloads: list[bytes]) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", port)
    client.loop_start()
    for published in [client.publish(TOPIC, payload, 1) for payload in payloads]:
        published.wait_for_publish(4 * SECONDS)
    client.disconnect()
    client.loop_stop()


def with_aiomqtt(port: int, payloads: list[bytes]) -> None:
    async def publish() -> None:
        async with aiomqtt.Client("127.0.0.1", port) as client:
            await asyncio.gather(*(client.publish(TOPIC, one, 1, timeout=4 * SECONDS) for one in payloads))

    asyncio.run(publish())


@pytest.mark.parametrize(
    ("count", "flooders"),
    [
        pytest.param(100, 0, id="100"),
        pytest.param(100, 1, id="100 beside a flood", marks=pytest.mark.long),
        pytest.param(100, 3, id="100 beside three floods", marks=pytest.mark.long),
        pytest.param(3000, 0, id="3000", marks=pytest.mark.long),
        pytest.param(3000, 1, id="3000 beside a flood", marks=pytest.mark.long),
        pytest.param(3000, 3, id="3000 beside three floods", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("plugins", [pytest.param(None, id="no ACL"), pytest.param(ACL, id="ACL")])
@pytest.mark.parametrize(
    "publish",
    [
        pytest.param(
            with_mosquitto_pub, marks=pytest.mark.skipif(MOSQUITTO_PUB is None, reason="needs mosquitto-clients")
        ),
        with_paho,
        with_aiomqtt,
    ],
)
@pytest.mark.filterwarnings("ignore:The 'acl' option is deprecated:DeprecationWarning")
def test_all_that_a_client_publishes_before_it_disconnects_is_called_and_delivered(
    target: Recorder, publish: Callable[[int, list[bytes]], None], plugins: dict[str, Any] | None,
    count: int, flooders: int,
) -> None:  # fmt: skip
    payloads = numbered(count)
    with (
        hosting(route(target), plugins) as host,
        listening(host.mqtt_port) as listener,
        flooded(host.mqtt_port, flooders),
    ):
        publish(host.mqtt_port, payloads)
        listener.await_messages(payloads)
        await_requests(target, payloads)
