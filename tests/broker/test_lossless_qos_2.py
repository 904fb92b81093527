"""Lossless routes and QoS 2: which PUBLISH under a packet id in use is a new message."""

from pathlib import Path

import pytest

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.broker.test_lossless import broker
from tests.support.broker_process import BrokerProcess
from tests.support.http_recorder import recording
from tests.support.lossless import route

RESTARTS = pytest.mark.parametrize("restarts", [pytest.param(8, id="8"), pytest.param(60, marks=pytest.mark.long)])


@RESTARTS
@pytest.mark.parametrize("dup", [False, True], ids=["as new", "as repeated"])
def test_a_publisher_that_crashes_before_its_pubrel_and_starts_again_at_id_1_loses_nothing(
    tmp_path: Path, processes: list[BrokerProcess], restarts: int, dup: bool
) -> None:
    with recording() as target:
        running = broker(processes, tmp_path, route(target.port))
        sent = [b"%d" % number for number in range(restarts)]
        for body in sent:
            wire = Wire(running.port, "crashing", clean=False)
            wire.send(publish_packet("in/x", body, 1, dup=dup, qos=2))
            wire.expect(0x50)
            wire.sock.close()
        assert sorted(target.request().body for _ in sent) == sorted(sent)


def test_a_message_of_qos_2_that_is_sent_again_before_its_pubrel_is_one_message(
    tmp_path: Path, processes: list[BrokerProcess]
) -> None:
    with recording() as target:
        running = broker(processes, tmp_path, route(target.port))
        wire = Wire(running.port, "repeating", clean=False)
        wire.send(publish_packet("in/x", b"once", 1, qos=2))
        wire.expect(0x50)
        wire.sock.close()
        wire = Wire(running.port, "repeating", clean=False)
        wire.send(publish_packet("in/x", b"once", 1, dup=True, qos=2) * 3)
        wire.send(bytes([0x62, 2, 0, 1]))
        wire.expect(0x70)
        wire.send(publish_packet("in/x", b"last", 1, qos=2))
        wire.expect(0x50)
        assert {target.request().body for _ in range(2)} == {b"once", b"last"}  # two calls, each on a connection
        assert target.arrived.empty()
        wire.sock.close()


@pytest.mark.parametrize(
    ("topic", "body", "dup"),
    [
        pytest.param("in/x", b"0", False, id="the same without DUP"),
        pytest.param("in/y", b"0", True, id="another topic"),
        pytest.param("in/x", b"1", True, id="another payload"),
    ],
)
def test_a_message_of_qos_2_under_an_id_in_use_is_new_unless_dup_topic_and_payload_are_the_same(
    tmp_path: Path, processes: list[BrokerProcess], topic: str, body: bytes, dup: bool
) -> None:
    with recording() as target:
        running = broker(processes, tmp_path, route(target.port))
        for packet in (publish_packet("in/x", b"0", 1, qos=2), publish_packet(topic, body, 1, dup=dup, qos=2)):
            wire = Wire(running.port, "crashing", clean=False)
            wire.send(packet)
            wire.expect(0x50)
            wire.sock.close()
        first, second = target.request(), target.request()
        assert {first.body, second.body} == {b"0", body}  # in either order: they are under way side by side
        assert first.headers["Idempotency-Key"] != second.headers["Idempotency-Key"]
