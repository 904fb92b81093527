"""What is checked of files and addresses before anything is started."""

import socket

import pytest
from amqtt.contexts import ListenerConfig, ListenerType

from amqtt_rest_bridge.broker import configuration as listeners
from tests.support.commands import Workplace
from tests.support.ports import free_port

CALLS = """
DEFINE ROUTE Calls WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_CLIENT "true" WITH BASE_ADDRESS "https://127.0.0.1" WITH CA_FILE "broker.yaml"
    ADD EVENT E WITH SOURCE_TOPIC "t" WITH METHOD "GET" WITH ENDPOINT "/"
"""


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        pytest.param("server_certfile: x, server_keyfile: y", "broker.yaml:7:86: error: server_certfile x", id="tls"),
        pytest.param(
            "processes: 0", "routes.lot:2:1: error: route Calls: CA_FILE: broker.yaml cannot be", id="CA_FILE"
        ),
    ],
)
def test_certificate_files_are_read(place: Workplace, settings: str, fault: str) -> None:
    place.configure(("processes: 0", settings))
    place.write("routes.lot", CALLS)
    assert f"\n{fault}" in f"\n{place.run('serve', '-c', 'broker.yaml', '--check').stdout}"


@pytest.mark.parametrize(
    ("bind", "where"),
    [
        pytest.param("192.0.2.1:1883", "192.0.2.1:1883: Cannot assign requested address", id="no-address-of-ours"),
        pytest.param("no.such.host.invalid:1883", "no.such.host.invalid:1883: ", id="no-such-name"),
    ],
)
def test_address_that_cannot_be_bound_is_named(bind: str, where: str) -> None:
    with pytest.raises(listeners.CannotListenError) as caught:
        listeners.probe({"web": ListenerConfig(bind=bind)})
    assert str(caught.value).startswith(f"listener web cannot listen on {where}")
    external = ListenerConfig(type=ListenerType.EXTERNAL, bind=bind)
    listeners.probe({"default": external, "none": ListenerConfig(bind=None)})


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", ""])
def test_taken_address_is_named_and_a_free_one_passes(host: str) -> None:
    family = socket.AF_INET if host == "127.0.0.1" else socket.AF_INET6
    with socket.create_server((host.strip("[]"), free_port()), family=family) as sock:
        bind = f"{host}:{sock.getsockname()[1]}"
        with pytest.raises(listeners.CannotListenError, match="Address already in use"):
            listeners.probe({"default": ListenerConfig(bind=bind)})
    listeners.probe({"default": ListenerConfig(bind=bind)})
