"""What the bridge itself checks of its settings, files and addresses, before anything is started."""

import socket
from pathlib import Path

import pytest
from amqtt.contexts import ListenerConfig, ListenerType

from amqtt_rest_bridge.broker import configuration as listeners
from amqtt_rest_bridge.cli import configuration
from amqtt_rest_bridge.settings import Settings
from tests.support.commands import SERVER_ROUTE, Workplace
from tests.support.ports import free_port

BRIDGE_FAULTS = [
    pytest.param(Settings("routes.lot", spool="nowhere/x.db"), "the folder of the setting spool does not", id="spool"),
    pytest.param(
        Settings("routes.lot", server_certfile="x", server_keyfile="y"), "server_certfile x and server_keyf", id="tls"
    ),
    pytest.param(Settings("nowhere.lot"), "cannot read nowhere.lot: No such file or directory", id="no-routes"),
]


def of_plugin(settings: Settings) -> configuration.Section:
    keys = ("plugins", "amqtt_rest_bridge.plugin.RestBridgePlugin")
    return configuration.Section(configuration.read(Path("broker.yaml")), keys, settings)


@pytest.mark.parametrize(("settings", "fault"), BRIDGE_FAULTS)
def test_files_of_the_bridge_are_checked(
    place: Workplace, caplog: pytest.LogCaptureFixture, settings: Settings, fault: str
) -> None:
    assert not configuration.check_start(of_plugin(settings))
    (message,) = caplog.messages
    assert message.startswith(f"broker.yaml:7:3: error: {fault}")


def test_sound_settings_of_the_bridge_are_not_complained_of(place: Workplace, caplog: pytest.LogCaptureFixture) -> None:
    assert configuration.check_start(of_plugin(Settings("routes.lot", spool="spool.db")))
    assert caplog.messages == []


def test_certificate_files_of_routes_are_read(place: Workplace, caplog: pytest.LogCaptureFixture) -> None:
    place.write(
        "routes.lot",
        'DEFINE ROUTE Calls WITH TYPE REST_API ADD REST_API_CONFIG WITH ENABLE_CLIENT "true" '
        'WITH BASE_ADDRESS "https://127.0.0.1" WITH CA_FILE "broker.yaml" ADD EVENT E WITH SOURCE_TOPIC "t" '
        'WITH METHOD "GET" WITH ENDPOINT "/"',
    )
    assert not configuration.check_start(of_plugin(Settings("routes.lot")))
    (message,) = caplog.messages
    assert message.startswith("routes.lot:1:1: error: route Calls: CA_FILE: broker.yaml cannot be used")


def test_route_files_are_checked(place: Workplace, caplog: pytest.LogCaptureFixture) -> None:
    place.write("routes.lot", SERVER_ROUTE.replace("POST", "POTS"))
    assert not configuration.check_start(of_plugin(Settings("routes.lot")))
    assert "routes.lot:7:21: error: " in caplog.messages[0]


UNREACHABLE = [
    pytest.param("192.0.2.1:1883", "192.0.2.1:1883: Cannot assign requested address", id="no-address-of-ours"),
    pytest.param("no.such.host.invalid:1883", "no.such.host.invalid:1883: ", id="no-such-name"),
]


@pytest.mark.parametrize(("bind", "where"), UNREACHABLE)
def test_address_that_cannot_be_bound_is_named(bind: str, where: str) -> None:
    with pytest.raises(listeners.CannotListenError) as caught:
        listeners.probe({"web": ListenerConfig(bind=bind)})
    assert str(caught.value).startswith(f"listener web cannot listen on {where}")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", ""])
def test_taken_address_is_named_and_a_free_one_passes(host: str) -> None:
    family = socket.AF_INET if host == "127.0.0.1" else socket.AF_INET6
    with socket.create_server((host.strip("[]"), free_port()), family=family) as sock:
        bind = f"{host}:{sock.getsockname()[1]}"
        with pytest.raises(listeners.CannotListenError, match="Address already in use"):
            listeners.probe({"default": ListenerConfig(bind=bind)})
    listeners.probe({"default": ListenerConfig(bind=bind)})


def test_listeners_without_an_address_of_their_own_are_not_probed() -> None:
    external = ListenerConfig(type=ListenerType.EXTERNAL, bind="192.0.2.1:1883")
    listeners.probe({"default": external, "none": ListenerConfig(bind=None)})
