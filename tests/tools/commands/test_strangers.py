"""Clients that are not named: nothing they send has an effect, nothing of the commands reaches them."""

import contextlib
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.embedded_broker import Host
from tests.support.waiting import eventually
from tests.tools.commands.tools import COMMAND, OUTPUT, Tool, definition, serving

ADD = f"-addRoute {definition('Forged')}".encode()
GUEST: dict[str, Any] = {"login": ("guest", "guest")}
RETAINED = "$SYS/Coreflux/Routes/Forged"


@pytest.fixture
def host(served: tuple[Host, Path]) -> Host:
    return served[0]


def received(host: Host, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the list of the commands that are taken from now on, without executing them."""
    commands: list[bytes] = []
    monkeypatch.setattr(host.plugin._command_topics, "_receive", commands.append)
    return commands


def send_and_close(wire: Wire, packet: bytes, *, acknowledged: int | None = 0x40) -> None:
    """Send a PUBLISH, and close the connection once the broker has read it, or has closed it."""
    wire.send(packet)
    if acknowledged:
        wire.expect(acknowledged)
    with wire.sock, contextlib.suppress(ConnectionError):
        wire.send(b"\xc0\x00")
        wire.expect(0xD0)


def publish(host: Host, number: int, options: dict[str, Any]) -> None:
    """Publish a command in one of ten ways, on a connection of its own: amqtt ends a client that does."""
    topic = (COMMAND, OUTPUT, RETAINED, f"{COMMAND}/")[number % 4]
    qos = number % 3
    if number % 10 == 9:  # as a will
        wire = Wire(host.mqtt_port, f"will-{number}", will=(topic, ADD), will_qos=qos, will_retain=True, **options)
        host.cut_off(wire.sock, f"will-{number}")
        return
    packet = publish_packet(topic, ADD, number + 1 if qos else None, qos=qos or 1)
    if number % 2:
        packet = bytes([packet[0] | 1]) + packet[1:]  # RETAIN
    wire = Wire(host.mqtt_port, f"stranger-{number}", **options)
    if qos == 2:
        wire.send(packet)
        wire.expect(0x50)
        packet = b"\x62\x02" + struct.pack(">H", number + 1)
    send_and_close(wire, packet, acknowledged=(None, 0x40, 0x70)[qos])


@contextlib.contextmanager
def nothing_comes(host: Host) -> Iterator[None]:
    """Check that nothing reaches a named user during the block, nor stays retained."""
    with closing(Tool(host, "editor", "$SYS/Coreflux/#", "marker")) as editor:
        editor.read("$SYS/Coreflux/Routes/FromFile")
        editor.seen.clear()
        yield
        with closing(Wire(host.mqtt_port, "marks", **GUEST)) as wire:
            wire.send(publish_packet("marker", b"", 1))
            editor.read("marker")
        assert (editor.seen, editor.outputs) == ([("marker", b"")], [])
        assert [topic for topic in host.broker.retained_messages if "Forged" in topic or topic == COMMAND] == []


@pytest.mark.parametrize("options", [pytest.param(GUEST, id="guest"), pytest.param({}, id="anonymous")])
def test_none_of_fifty_publishes_has_an_effect_though_the_acl_allows_everything(
    host: Host, served: tuple[Host, Path], options: dict[str, Any]
) -> None:
    with nothing_comes(host):
        for number in range(50):
            publish(host, number, options)
    assert list((served[1] / "live").iterdir()) == []
    with closing(Tool(host)) as editor:
        assert editor.routes() == ["FromFile"]


def test_neither_a_route_nor_another_plugin_speaks_for_the_broker(host: Host) -> None:
    with nothing_comes(host):
        for topic in (OUTPUT, COMMAND, RETAINED):
            host.wait(host.broker.internal_message_broadcast(topic, b"success"))
            host.wait(host.broker.retain_message(None, topic, b"success"))


@pytest.mark.parametrize("topic", [OUTPUT, "$SYS/Coreflux/#", "$SYS/Coreflux/Routes/+", "$SYS/Coreflux",
                                   f"$share/g/{OUTPUT}", "$share/g/$SYS/Coreflux/#"])  # fmt: skip
def test_a_subscription_of_a_stranger_is_refused(host: Host, topic: str) -> None:
    with closing(Tool(host, "guest", "other")) as guest:
        assert guest.subscribe(topic) == 0x80
        assert guest.subscribe("$SYS/broker/#") == 1


def test_what_else_a_stranger_subscribes_to_brings_nothing_of_the_commands(host: Host) -> None:
    filters = ("$SYS/#", "$SYS/+/Command/Output", "$SYS/+/Routes/#", "#", "+/Coreflux/#", "$share/g/$SYS/#", "marker")
    with closing(Tool(host, "guest", *filters)) as guest, closing(Tool(host)) as editor:
        editor.add("Seen")
        editor.remove("Seen")
        editor.wire.send(publish_packet("marker", b"", 1))
        guest.read("marker")
        assert guest.outputs == []
        assert [topic for topic, _ in guest.seen if "Coreflux" in topic] == []
        assert "$SYS/broker/routes/FromFile/status" in dict(guest.seen), "what is retained elsewhere comes"


def test_who_takes_the_session_of_a_named_user_over_gets_nothing_of_it(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Wire(host.mqtt_port, "kept", clean=False, login=("editor", "right"))
    wire.subscribe(OUTPUT, 1)
    host.cut_off(wire.sock, "kept")
    with closing(Tool(host)) as editor:
        editor.routes()
        guest = Wire(host.mqtt_port, "kept", clean=False, **GUEST)
        guest.subscribe("marker")
        editor.routes()
    guest.send(publish_packet("marker", b"", 1))
    seen: list[str] = []
    while "marker" not in seen:
        seen += [topic for topic, _ in guest.messages()]
    assert set(seen) == {"marker"}
    commands = received(host, monkeypatch)
    send_and_close(guest, publish_packet(COMMAND, ADD, 2))
    assert commands == []


def test_a_name_that_nothing_has_checked_is_not_a_user(
    threads: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, {}) as host:  # amqtt's plugin for anonymous clients accepts any name
        commands = received(host, monkeypatch)
        send_and_close(Wire(host.mqtt_port, "claims", login=("editor", "any")), publish_packet(COMMAND, ADD, 1))
        with closing(Tool(host, "editor", "other")) as tool:
            assert tool.subscribe(OUTPUT) == 0x80
        assert commands == []


def test_a_wrong_password_does_not_connect(host: Host) -> None:
    with pytest.raises(ConnectionRefusedError):
        Tool(host, "editor", password="wrong")


def test_without_the_setting_no_topic_is_there(tmp_path: Path) -> None:
    with serving(tmp_path, coreflux=None) as host:
        wire = Wire(host.mqtt_port, "asks", login=("editor", "right"))
        send_and_close(wire, publish_packet(COMMAND, b"-listRoutes", 1))
        eventually(lambda: not [topic for topic in host.broker.retained_messages if "Coreflux" in topic], "retained")


@pytest.mark.parametrize("qos", [0, 2])
def test_a_user_may_command_with_any_qos(host: Host, qos: int) -> None:
    with closing(Tool(host)) as editor:
        editor.wire.send(publish_packet(COMMAND, b"-listTemplates", 7 if qos else None, qos=qos or 1))
        if qos:
            editor.wire.expect(0x50)
            editor.wire.send(b"\x62\x02\x00\x07")
        assert editor.answer() == "REST_API"
