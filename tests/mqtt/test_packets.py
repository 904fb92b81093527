"""The bytes of MQTT packets: what is written, what is read, and that nothing else is."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.properties import Properties as PahoProperties

from amqtt_rest_bridge.mqtt import packets, standard
from amqtt_rest_bridge.mqtt.packets import (
    Acknowledged,
    Answered,
    Connack,
    Decoder,
    Disconnect,
    Packet,
    PacketError,
    Pingresp,
    Publish,
    Will,
)
from amqtt_rest_bridge.mqtt.standard import MQTT_3_1_1, MQTT_5, Code, Property, PropertyKind

LEVELS = (MQTT_3_1_1, MQTT_5)
P = Property


def read(data: bytes, level: int = MQTT_5) -> list[Packet]:
    """Return all packets of some bytes."""
    decoder = Decoder(level)
    decoder.feed(data)
    return rest(decoder)


def rest(decoder: Decoder) -> list[Packet]:
    found: list[Packet] = []
    while (packet := decoder.next()) is not None:
        found.append(packet)
    return found


SAMPLES = [
    pytest.param("20 03 00 00 00", MQTT_5, Connack(False, 0, {}), id="CONNACK"),
    pytest.param("20 03 00 87 00", MQTT_5, Connack(False, 0x87, {}), id="CONNACK-refusal"),
    pytest.param("20 02 00 01", MQTT_5, Connack(False, 0x84, {}), id="CONNACK-of-a-server-that-knows-3.1.1"),
    pytest.param("20 02 01 00", MQTT_3_1_1, Connack(True, 0, {}), id="CONNACK-3.1.1"),
    pytest.param("20 02 00 05", MQTT_3_1_1, Connack(False, 5, {}), id="CONNACK-3.1.1-refusal"),
    pytest.param(
        "20 2A 01 00 27 11 00000E10 21 0014 24 01 25 00 27 00010000 12 0001 61 22 000A 1F 0001 62"
        "26 0001 6B 0001 76 29 00 2A 00",
        MQTT_5,
        Connack(True, 0, {
            P.SESSION_EXPIRY_INTERVAL: 3600, P.RECEIVE_MAXIMUM: 20, P.MAXIMUM_QOS: 1, P.RETAIN_AVAILABLE: 0,
            P.MAXIMUM_PACKET_SIZE: 65_536, P.ASSIGNED_CLIENT_IDENTIFIER: "a", P.TOPIC_ALIAS_MAXIMUM: 10,
            P.REASON_STRING: "b", P.USER_PROPERTY: [("k", "v")], P.SUBSCRIPTION_IDENTIFIER_AVAILABLE: 0,
            P.SHARED_SUBSCRIPTION_AVAILABLE: 0,
        }),
        id="CONNACK-with-properties",
    ),
    pytest.param("30 05 0001 61 00 78", MQTT_5, Publish("a", b"x", 0, False, False, None, {}), id="PUBLISH-0"),
    pytest.param("3B 07 0001 61 0007 00 78", MQTT_5, Publish("a", b"x", 1, True, True, 7, {}), id="PUBLISH-1"),
    pytest.param("34 06 0001 61 0007 00", MQTT_5, Publish("a", b"", 2, False, False, 7, {}), id="PUBLISH-2"),
    pytest.param("32 06 0001 61 0007 78", MQTT_3_1_1, Publish("a", b"x", 1, False, False, 7, {}), id="PUBLISH-3.1.1"),
    pytest.param(
        "30 25 0001 61 20 01 01 02 0000000A 03 0001 63 08 0001 72 09 0002 0001 0B 07 0B 80 01 26 0001 6B 0001 76 78",
        MQTT_5,
        Publish("a", b"x", 0, False, False, None, {
            P.PAYLOAD_FORMAT_INDICATOR: 1, P.MESSAGE_EXPIRY_INTERVAL: 10, P.CONTENT_TYPE: "c", P.RESPONSE_TOPIC: "r",
            P.CORRELATION_DATA: b"\x00\x01", P.SUBSCRIPTION_IDENTIFIER: [7, 128], P.USER_PROPERTY: [("k", "v")],
        }),
        id="PUBLISH-with-properties",
    ),
    pytest.param("40 02 0007", MQTT_5, Acknowledged(standard.PUBACK, 7, 0, {}), id="PUBACK"),
    pytest.param("40 03 0007 97", MQTT_5, Acknowledged(standard.PUBACK, 7, 0x97, {}), id="PUBACK-code"),
    pytest.param(
        "40 08 0007 00 04 1F 0001 61",
        MQTT_5,
        Acknowledged(standard.PUBACK, 7, 0, {P.REASON_STRING: "a"}),
        id="PUBACK-why",
    ),
    pytest.param("50 02 0007", MQTT_3_1_1, Acknowledged(standard.PUBREC, 7, 0, {}), id="PUBREC"),
    pytest.param("62 02 0007", MQTT_5, Acknowledged(standard.PUBREL, 7, 0, {}), id="PUBREL"),
    pytest.param("70 04 0007 92 00", MQTT_5, Acknowledged(standard.PUBCOMP, 7, 0x92, {}), id="PUBCOMP"),
    pytest.param("90 05 0007 00 01 80", MQTT_5, Answered(standard.SUBACK, 7, b"\x01\x80", {}), id="SUBACK"),
    pytest.param("90 03 0007 80", MQTT_3_1_1, Answered(standard.SUBACK, 7, b"\x80", {}), id="SUBACK-3.1.1"),
    pytest.param("B0 04 0007 00 11", MQTT_5, Answered(standard.UNSUBACK, 7, b"\x11", {}), id="UNSUBACK"),
    pytest.param("B0 02 0007", MQTT_3_1_1, Answered(standard.UNSUBACK, 7, b"", {}), id="UNSUBACK-3.1.1"),
    pytest.param("D0 00", MQTT_5, Pingresp(), id="PINGRESP"),
    pytest.param("E0 00", MQTT_5, Disconnect(0, {}), id="DISCONNECT"),
    pytest.param("E0 01 8E", MQTT_5, Disconnect(0x8E, {}), id="DISCONNECT-code"),
    pytest.param("E0 06 9D 04 1C 0001 61", MQTT_5, Disconnect(0x9D, {P.SERVER_REFERENCE: "a"}), id="DISCONNECT-moved"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "level", "packet"), SAMPLES)
def test_a_packet_is_read_from_any_two_pieces_with_others_around_it(data: str, level: int, packet: Packet) -> None:
    around = packets.acknowledgement(standard.PUBACK, 1)
    stream = around + bytes.fromhex(data) + around
    one = Acknowledged(standard.PUBACK, 1, 0, {})
    for split in range(len(stream) + 1):
        decoder = Decoder(level)
        found: list[Packet] = []
        for piece in (stream[:split], stream[split:]):
            decoder.feed(piece)
            found += rest(decoder)
        assert found == [one, packet, one]


def test_packets_may_come_byte_by_byte_and_be_left_in_the_buffer_meanwhile() -> None:
    whole = [(bytes.fromhex(sample.values[0]), sample.values[2]) for sample in SAMPLES if sample.values[1] == MQTT_5]  # type: ignore[arg-type]
    large = packets.publish("large", b"x" * 70_000, 9, properties={})
    whole.append((large, Publish("large", b"x" * 70_000, 1, False, False, 9, {})))
    stream = b"".join(data for data, _ in whole)
    one_by_one, pieces = Decoder(MQTT_5), Decoder(MQTT_5)
    found = []
    for number in range(len(stream)):
        one_by_one.feed(stream[number : number + 1])
        found += rest(one_by_one)
    assert found == [packet for _, packet in whole]
    found = []
    for start in range(0, len(stream), 50):  # one packet is read for each piece that comes, the others stay
        pieces.feed(stream[start : start + 50])
        found += [packet for packet in (pieces.next(),) if packet is not None]
    assert found + rest(pieces) == [packet for _, packet in whole]


WRONG = [
    pytest.param("00 00", MQTT_5, 0x82, id="type-0"),
    pytest.param("10 00", MQTT_5, 0x82, id="CONNECT-from-a-server"),
    pytest.param("82 00", MQTT_5, 0x82, id="SUBSCRIBE-from-a-server"),
    pytest.param("C0 00", MQTT_5, 0x82, id="PINGREQ-from-a-server"),
    pytest.param("F0 00", MQTT_5, 0x82, id="AUTH-that-was-not-begun"),
    pytest.param("E0 00", MQTT_3_1_1, 0x82, id="DISCONNECT-from-a-server-3.1.1"),
    pytest.param("41 02 0007", MQTT_5, 0x81, id="PUBACK-flags"),
    pytest.param("60 02 0007", MQTT_5, 0x81, id="PUBREL-flags"),
    pytest.param("D1 00", MQTT_5, 0x81, id="PINGRESP-flags"),
    pytest.param("D0 01 00", MQTT_5, 0x81, id="PINGRESP-with-a-body"),
    pytest.param("32 FF FF FF FF 7F", MQTT_5, 0x81, id="length-of-five-bytes"),
    pytest.param("D0 80 00", MQTT_5, 0x81, id="length-longer-than-needed"),
    pytest.param("20 03 02 00 00", MQTT_5, 0x81, id="CONNACK-flags"),
    pytest.param("20 03 01 87 00", MQTT_5, 0x82, id="CONNACK-refusal-with-a-session"),
    pytest.param("20 03 00 02 00", MQTT_5, 0x82, id="CONNACK-code-that-is-no-refusal"),
    pytest.param("20 04 00 00 00 00", MQTT_5, 0x81, id="CONNACK-too-long"),
    pytest.param("20 05 00 00 02 24 02", MQTT_5, 0x82, id="maximum-QoS-2"),
    pytest.param("20 06 00 00 03 21 0000", MQTT_5, 0x82, id="Receive-Maximum-0"),
    pytest.param("20 08 00 00 05 27 00000000", MQTT_5, 0x82, id="Maximum-Packet-Size-0"),
    pytest.param("20 05 00 00 02 25 02", MQTT_5, 0x82, id="a-flag-of-2"),
    pytest.param("20 07 00 00 04 25 01 25 01", MQTT_5, 0x82, id="a-property-twice"),
    pytest.param("20 05 00 00 02 0B 01", MQTT_5, 0x81, id="a-property-of-another-packet"),
    pytest.param("20 05 00 00 02 7E 01", MQTT_5, 0x81, id="an-unknown-property"),
    pytest.param("20 05 00 00 03 25 01", MQTT_5, 0x81, id="properties-longer-than-the-packet"),
    pytest.param("36 06 0001 61 0007 00", MQTT_5, 0x81, id="QoS-3"),
    pytest.param("38 04 0001 61 00", MQTT_5, 0x81, id="DUP-with-QoS-0"),
    pytest.param("32 06 0001 61 0000 00", MQTT_5, 0x82, id="packet-identifier-0"),
    pytest.param("40 02 0000", MQTT_5, 0x82, id="PUBACK-packet-identifier-0"),
    pytest.param("30 04 0001 2B 00", MQTT_5, 0x81, id="topic-with-a-wildcard"),
    pytest.param("30 03 0000 00", MQTT_5, 0x82, id="no-topic"),
    pytest.param("30 04 0001 00 00", MQTT_5, 0x81, id="topic-with-U+0000"),
    pytest.param("30 06 0003 EDA080 00", MQTT_5, 0x81, id="topic-with-a-surrogate"),
    pytest.param("30 05 0002 C0AF 00", MQTT_5, 0x81, id="topic-with-an-overlong-form"),
    pytest.param("30 03 0009 61", MQTT_5, 0x81, id="topic-longer-than-the-packet"),
    pytest.param("30 07 0001 61 03 23 0001", MQTT_5, 0x94, id="topic-alias"),
    pytest.param("30 08 0001 61 04 08 0001 23", MQTT_5, 0x82, id="response-topic-with-a-wildcard"),
    pytest.param("30 06 0001 61 02 0B 00", MQTT_5, 0x82, id="subscription-identifier-0"),
    pytest.param("30 06 0001 61 02 01 02", MQTT_5, 0x82, id="payload-format-2"),
    pytest.param("40 03 0007 01", MQTT_5, 0x81, id="PUBACK-code"),
    pytest.param("40 03 0007 00", MQTT_3_1_1, 0x81, id="PUBACK-3.1.1-with-a-code"),
    pytest.param("62 03 0007 80", MQTT_5, 0x81, id="PUBREL-code"),
    pytest.param("90 04 0007 00 03", MQTT_5, 0x81, id="SUBACK-code"),
    pytest.param("90 03 0007 00", MQTT_5, 0x81, id="SUBACK-without-a-code"),
    pytest.param("90 03 0007 87", MQTT_3_1_1, 0x81, id="SUBACK-3.1.1-code"),
    pytest.param("B0 03 0007 00", MQTT_3_1_1, 0x81, id="UNSUBACK-3.1.1-with-a-code"),
    pytest.param("E0 01 04", MQTT_5, 0x81, id="DISCONNECT-code-of-a-client"),
    pytest.param("E0 07 00 05 11 00000001", MQTT_5, 0x82, id="DISCONNECT-of-a-server-with-a-session-expiry"),
]


@pytest.mark.parametrize(("data", "level", "code"), WRONG)
def test_what_the_standard_does_not_allow_has_its_reason_code(data: str, level: int, code: int) -> None:
    with pytest.raises(PacketError) as raised:
        read(bytes.fromhex(data), level)
    assert raised.value.code == code


def is_harmless(data: bytes, level: int) -> None:
    """Check that bytes are read, or refused with the one error there is."""
    try:
        read(data, level)
    except PacketError as error:
        assert error.code in standard.REASONS and "\n" not in str(error)


def with_length(data: bytes) -> bytes:
    """Return a packet whose length is that of what is left of it."""
    return data[:1] + bytes([len(data) - 2]) + data[2:]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("data", [bytes.fromhex(str(sample.values[0])) for sample in SAMPLES])
def test_cut_off_and_flipped_bits_raise_nothing_else(data: bytes, level: int) -> None:
    for cut in range(2, len(data)):
        is_harmless(data[:cut], level)
        is_harmless(with_length(data[:cut]), level)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        is_harmless(bytes(flipped), level)
        is_harmless(with_length(bytes(flipped)), level)


@settings(deadline=None)
@given(st.binary(max_size=64), st.integers(0, 255), st.sampled_from(LEVELS))
def test_any_bytes_raise_nothing_else(body: bytes, first: int, level: int) -> None:
    is_harmless(body, level)
    is_harmless(bytes([first, len(body)]) + body, level)


# Properties.

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


def values(name: Property) -> st.SearchStrategy[Any]:
    """Return what a property may be."""
    whole = {PropertyKind.BYTE: 255, PropertyKind.TWO_BYTES: 65_535, PropertyKind.FOUR_BYTES: 4_294_967_295}
    if name.kind in whole:
        return st.integers(name.least, min(name.most, whole[name.kind]))
    if name is Property.SUBSCRIPTION_IDENTIFIER:
        return st.lists(st.integers(1, standard.LARGEST_LENGTH), min_size=1, max_size=3)
    if name is Property.USER_PROPERTY:
        return st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3)
    return TEXTS if name.kind is PropertyKind.TEXT else st.binary(max_size=20)


ANY_PROPERTIES = st.fixed_dictionaries({}, optional={name: values(name) for name in Property})


@settings(deadline=None)
@given(ANY_PROPERTIES, st.sampled_from(range(standard.CONNECT, standard.WILL + 1)))
def test_properties_are_read_as_they_were_written_in_the_packets_that_may_have_them(
    properties: dict[Property, Any], packet: int
) -> None:
    own = {name: value for name, value in properties.items() if packet in name.packets}
    data = packets.write_properties(own)
    assert packets.read_properties(b"?" + data + b"?", 1, len(data) + 1, packet) == (own, len(data) + 1)
    for name in set(properties) - set(own):
        data = packets.write_properties({name: properties[name]})
        with pytest.raises(PacketError, match=f"has no property 0x{name:02X}"):
            packets.read_properties(data, 0, len(data), packet)


def test_user_properties_behind_the_first_8_kib_are_skipped_and_other_properties_behind_them_are_read() -> None:
    pairs = [("a", "x" * 8000), ("b", "y" * 8000), ("c", "z")]
    data = packets.write_properties({P.USER_PROPERTY: pairs, P.CORRELATION_DATA: b"1"})
    found, end = packets.read_properties(data, 0, len(data), standard.PUBLISH)
    assert (found, end) == ({P.USER_PROPERTY: pairs[:1], P.CORRELATION_DATA: b"1"}, len(data))
    cut = packets.write_properties({P.USER_PROPERTY: pairs})[:-1]
    cut = packets.of_variable(len(cut) - 2) + cut[2:]
    with pytest.raises(PacketError, match="a packet ends within a text"):
        packets.read_properties(cut, 0, len(cut), standard.PUBLISH)


@settings(deadline=None)
@given(
    ANY_PROPERTIES,
    st.sampled_from([standard.CONNACK, standard.PUBLISH, standard.SUBACK, standard.DISCONNECT, standard.CONNECT]),
)
def test_properties_are_those_of_another_implementation(properties: dict[Property, Any], packet: int) -> None:
    if P.MAXIMUM_PACKET_SIZE in properties:  # paho writes none that a packet cannot have
        properties[P.MAXIMUM_PACKET_SIZE] = min(properties[P.MAXIMUM_PACKET_SIZE], standard.LARGEST_LENGTH)
    theirs = PahoProperties(packet)  # type: ignore[no-untyped-call]
    for name, value in properties.items():
        if packet in name.packets:
            called = "".join(word.capitalize() for word in name.name.split("_")).replace("Qos", "QoS")
            many = name in (Property.USER_PROPERTY, Property.SUBSCRIPTION_IDENTIFIER) and packet != standard.SUBSCRIBE
            for one in value if many else [value]:
                setattr(theirs, called, one)
    data = theirs.pack()  # type: ignore[no-untyped-call]
    found, end = packets.read_properties(data, 0, len(data), packet)
    assert end == len(data)
    assert found == {name: value for name, value in properties.items() if packet in name.packets}


@pytest.mark.parametrize("name", [one for one in Property if one not in (P.USER_PROPERTY, P.SUBSCRIPTION_IDENTIFIER)])
def test_a_property_is_there_once(name: Property) -> None:
    value: Any = "a" if name.kind is PropertyKind.TEXT else 1
    value = b"a" if name in (P.CORRELATION_DATA, P.AUTHENTICATION_DATA) else value
    once = packets.write_properties({name: value})[1:]
    packet = next(iter(name.packets))
    twice = packets.of_variable(2 * len(once)) + once + once
    with pytest.raises(PacketError) as raised:
        packets.read_properties(twice, 0, len(twice), packet)
    assert raised.value.code == Code.PROTOCOL_ERROR


# Round trips, and what is written.


@settings(deadline=None)
@given(
    TEXTS.filter(lambda text: bool(text) and not set(text) & set("+#")), st.binary(max_size=300),
    st.sampled_from([0, 1, 2]), st.booleans(), st.booleans(), st.integers(1, 65_535), ANY_PROPERTIES,
    st.sampled_from(LEVELS),
)  # fmt: skip
def test_a_message_is_read_as_it_was_written(
    topic: str, payload: bytes, qos: int, retain: bool, duplicate: bool, number: int,
    properties: dict[Property, Any], level: int,
) -> None:  # fmt: skip
    packet_id = number if qos else None
    duplicate = duplicate and qos > 0
    own: dict[Property, Any] = {
        name: value
        for name, value in properties.items()
        if standard.PUBLISH in name.packets and name is not P.TOPIC_ALIAS
    }
    if set(own.get(P.RESPONSE_TOPIC, "")) & set("+#") or level == MQTT_3_1_1:
        own = {}
    data = packets.publish(
        topic, payload, packet_id, qos=qos, retain=retain, duplicate=duplicate,
        properties=own if level == MQTT_5 else None,
    )  # fmt: skip
    assert read(data, level) == [Publish(topic, payload, qos, retain, duplicate, packet_id, own)]


WRITTEN = [
    pytest.param(
        packets.connect("c", keep_alive=15, clean=True), "10 0D 0004 4D515454 04 02 000F 0001 63", id="CONNECT-3.1.1"
    ),
    pytest.param(
        packets.connect(
            "c", keep_alive=15, clean=False, username="u", password="p", will=Will("w", b"gone"),
            properties={P.SESSION_EXPIRY_INTERVAL: 60, P.RECEIVE_MAXIMUM: 2},
        ),
        "10 26 0004 4D515454 05 EC 000F 08 11 0000003C 21 0002 0001 63 00 0001 77 0004 676F6E65 0001 75 0001 70",
        id="CONNECT",
    ),
    pytest.param(
        packets.subscribe(7, "a/+", 0x21, {P.SUBSCRIPTION_IDENTIFIER: (300,)}),
        "82 0C 0007 03 0B AC02 0003 612F2B 21", id="SUBSCRIBE",
    ),
    pytest.param(packets.subscribe(7, "a", 1), "82 06 0007 0001 61 01", id="SUBSCRIBE-3.1.1"),
    pytest.param(packets.unsubscribe(7, "a", {}), "A2 06 0007 00 0001 61", id="UNSUBSCRIBE"),
    pytest.param(packets.acknowledgement(standard.PUBACK, 256), "40 02 0100", id="PUBACK"),
    pytest.param(packets.acknowledgement(standard.PUBREC, 7), "50 02 0007", id="PUBREC"),
    pytest.param(packets.acknowledgement(standard.PUBREL, 7), "62 02 0007", id="PUBREL"),
    pytest.param(packets.acknowledgement(standard.PUBCOMP, 65_535), "70 02 FFFF", id="PUBCOMP"),
    pytest.param(packets.pingreq(), "C0 00", id="PINGREQ"),
    pytest.param(packets.disconnect(), "E0 00", id="DISCONNECT"),
    pytest.param(packets.disconnect(0x81), "E0 01 81", id="DISCONNECT-code"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "expected"), WRITTEN)
def test_a_packet_is_written(data: bytes, expected: str) -> None:
    assert data.hex() == bytes.fromhex(expected).hex()


@pytest.mark.parametrize("value", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, standard.LARGEST_LENGTH])
def test_a_length_has_as_many_bytes_as_it_needs(value: int) -> None:
    data = packets.of_variable(value)
    assert packets.variable(data, 0, len(data)) == (value, len(data))
    assert len(data) == 1 + (value > 127) + (value > 16_383) + (value > 2_097_151)


def test_what_is_too_long_for_mqtt_is_not_written() -> None:
    with pytest.raises(ValueError, match="65536 bytes are more than MQTT can write"):
        packets.publish("a" * 65_536, b"", None, qos=0)
    with pytest.raises(ValueError, match="is more than MQTT can write"):
        packets.of_variable(standard.LARGEST_LENGTH + 1)
