"""How `rest-bridge status` connects: credentials, addresses, refusals, peers that are not brokers."""

import pytest
from amqtt.contexts import Action, BaseContext
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import Session

from amqtt_rest_bridge.__main__ import main
from amqtt_rest_bridge.cli.broker_client import BrokerUnavailableError, broker_address
from amqtt_rest_bridge.cli.status import snapshot
from amqtt_rest_bridge.errors import ConfigurationError
from tests.support.commands import SERVER_ROUTE, taken_port
from tests.support.embedded_broker import Host, hosting
from tests.support.http_target import Peer, Target, silent

HERE = "tests.cli.test_status_connecting"


class OneUser(BaseAuthPlugin):
    """Accept one user."""

    async def authenticate(self, *, session: Session) -> bool | None:
        return (session.username, session.password) == ("mon:itor", "s/cr@t")


class NoSubscriptions(BaseTopicPlugin):
    """Forbids every subscription."""

    def __init__(self, context: BaseContext) -> None:
        super().__init__(context)

    async def topic_filtering(
        self, *, session: Session | None = None, topic: str | None = None, action: Action | None = None
    ) -> bool | None:
        return action is not Action.SUBSCRIBE


def url(host: Host, credentials: str = "") -> str:
    return f"mqtt://{credentials}127.0.0.1:{host.mqtt_port}"


def test_credentials_of_the_url_are_used_decoded() -> None:
    with hosting(SERVER_ROUTE, {f"{HERE}.OneUser": {}}) as gated:
        assert snapshot(broker_address(url(gated, "mon%3Aitor:s%2Fcr%40t@"))).statuses == []


def test_the_admin_port_is_not_asked_and_the_broker_named_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--admin", "http://127.0.0.1:9464"]) == 2
    assert "read from the broker, not from the admin port; write --broker mqtt://HOST:PORT" in capsys.readouterr().err


def test_refusal_is_printed_without_the_password(capsys: pytest.CaptureFixture[str]) -> None:
    with hosting(SERVER_ROUTE, {f"{HERE}.OneUser": {}}) as gated:
        assert main(["status", "--broker", url(gated, "monitor:geheim@")]) == 1
        printed = capsys.readouterr()
        shown = url(gated)
    assert printed.err == (
        f"rest-bridge status: cannot connect to {shown}: "
        "not authorized: check user name (mqtt://USER@HOST) and password (REST_BRIDGE_BROKER_PASSWORD)\n"
    )


def test_forbidden_subscription_is_printed() -> None:
    with (
        hosting(SERVER_ROUTE, {f"{HERE}.NoSubscriptions": {}}) as strict,
        pytest.raises(BrokerUnavailableError, match=r"a subscription to \$SYS/broker/routes/\+/status$"),
    ):
        snapshot(broker_address(url(strict)))


def test_broker_that_does_not_run_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with taken_port() as port:
        pass
    assert main(["status", "--broker", f"mqtt://u:geheim@127.0.0.1:{port}"]) == 1
    assert capsys.readouterr().err == (
        f"rest-bridge status: cannot connect to mqtt://127.0.0.1:{port}: connection refused; is the broker running?\n"
    )


def answering(answer: bytes) -> Target:
    """Run a server that sends one answer to whatever comes first, and closes."""

    def script(peer: Peer) -> None:
        peer.sock.recv(1000)
        peer.send(answer)

    return Target(script)


ANSWERS = [
    pytest.param(b"", "mqtt", "it closed the connection; is it an MQTT broker?", id="nothing"),
    pytest.param(b"\x20\x02\x00\x04", "mqtt", "wrong user name or password", id="wrong-password"),
    pytest.param(b"\x20\x02\x00\x03", "mqtt", "it is not available", id="not-available"),
    pytest.param(b"\x20\x02\x00\x63", "mqtt", "it answers with code 99", id="unknown-code"),
    pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", "mqtts", "", id="no-tls"),
    pytest.param(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "ws", "", id="no-websocket"),
]


@pytest.mark.parametrize(("answer", "scheme", "why"), ANSWERS)
def test_peer_that_is_not_an_mqtt_broker_is_printed(answer: bytes, scheme: str, why: str) -> None:
    with answering(answer) as target, pytest.raises(BrokerUnavailableError) as caught:
        snapshot(broker_address(f"{scheme}://127.0.0.1:{target.port}"))
    assert str(caught.value).startswith(f"cannot connect to {scheme}://127.0.0.1:{target.port}: {why}")
    assert "\n" not in str(caught.value)


def test_peer_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqtt_rest_bridge.mqtt.connection.CONNECT_SECONDS", 0.2)
    with Target(silent) as target, pytest.raises(BrokerUnavailableError, match="no answer within 0 s; is it an MQTT"):
        snapshot(broker_address(f"mqtt://127.0.0.1:{target.port}"))


ADDRESSES = [
    pytest.param("mqtt://host", "mqtt://host:1883", id="default-port"),
    pytest.param("mqtts://host", "mqtts://host:8883", id="tls"),
    pytest.param("ws://u:p@host/mqtt", "ws://host:80", id="websocket"),
    pytest.param("mqtt://u:p@[::1]:1", "mqtt://[::1]:1", id="ipv6"),
]


@pytest.mark.parametrize(("given", "shown"), ADDRESSES)
def test_address_is_shown_without_credentials(given: str, shown: str) -> None:
    address = broker_address(given)
    assert address.shown == shown
    assert (address.username, address.password) == (("u", "p") if "u:p@" in given else (None, None))
    assert "'p'" not in repr(address)


@pytest.mark.parametrize("given", ["", "host", "127.0.0.1:1883", "http://host", "mqtt://", "mqtt://u:geheim@h:x"])
def test_address_that_is_none_is_refused_without_repeating_it(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"^--broker is not the address of a broker; write mqtt://\[USER"):
        broker_address(given)
    assert main(["status", "--broker", given]) == 2
    assert "geheim" not in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "nan", "86401"])
def test_seconds_that_cannot_be_are_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--seconds", seconds]) == 2
    assert f"'{seconds}' is not a number of seconds above 0" in capsys.readouterr().err
