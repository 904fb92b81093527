"""What the project ships for a broker of your own, and what the page of workers shows, done as it is written."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from amqtt_rest_bridge.__main__ import main as rest_bridge
from amqtt_rest_bridge.mqtt.connection import MqttConnection
from amqtt_rest_bridge.mqtt.values import Address, ClientSession, Subscription
from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.broker_process import BrokerProcess
from tests.support.documents import ROOT, blocks, page
from tests.worker.mosquitto import Mosquitto


def test_the_shipped_configuration_of_a_worker_is_sound(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    for slot in ("0", "1"):
        status = rest_bridge(["worker", "-c", "conf/worker.yaml", "--check", "--slot", slot])
        assert (status, capsys.readouterr().out) == (0, "ok\n")


@pytest.mark.mosquitto
@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto-clients is not installed")
def test_the_command_of_the_guide_has_the_broker_forget_a_session_and_its_messages(mosquitto: Mosquitto) -> None:
    (written,) = (one for one in blocks(page("amqtt_rest_bridge/group/README.md"), "sh") if "mosquitto_sub" in one)

    async def present() -> bool:
        """Connect with the session's client id, subscribe as its route does, and leave the session to the broker."""
        where = Address("127.0.0.1", mosquitto.port, None, None, None, "mosquitto")
        connection = MqttConnection(where, ClientSession("plant-0:Orders", 3600, 1), lambda *_: None)
        await connection.open()
        await connection.subscribe([Subscription("$share/plant:Orders/in", 1)])
        await connection.disconnect()
        return connection.granted.session_present

    found = [asyncio.run(present()) for _ in range(2)]
    mosquitto.client().publish("in", b"queued")
    subprocess.run([*written.split(), "-p", str(mosquitto.port)], check=True, timeout=10)
    assert [*found, asyncio.run(present())] == [False, True, False]


@pytest.mark.mosquitto
def test_mosquitto_and_amqtt_pass_messages_to_each_other_as_the_guide_connects_them(tmp_path: Path) -> None:
    amqtt = BrokerProcess(tmp_path, "")
    (written,) = (one for one in blocks(page("amqtt_rest_bridge/group/README.md"), "conf") if "topic" in one)
    connection = written.replace("127.0.0.1:1884", f"127.0.0.1:{amqtt.port}")
    try:
        amqtt.start()
        inside = Wire(amqtt.port, "inside")
        inside.subscribe("sensors/#", 1)
        with Mosquitto(tmp_path, connection) as mosquitto:
            outside = mosquitto.client("outside").subscribe("results/#")
            outside.publish("sensors/1", b"21.5")
            assert inside.messages() == [("sensors/1", b"21.5")]
            packet = publish_packet("results/1", b"stored", 1)
            inside.send(bytes([packet[0] | 1]) + packet[1:])  # retained: the bridge may not have subscribed yet
            assert outside.next() == ("results/1", b"stored")
        inside.close()
    finally:
        amqtt.close()
