"""Last wills are sent for admitted clients, on topics where these may publish; status topics are the bridge's."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from amqtt.contexts import Action, BaseContext
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import Session

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.asking import ask
from tests.support.commands import overview
from tests.support.embedded_broker import Host, hosting
from tests.support.http_recorder import Recorder
from tests.support.waiting import SECONDS, eventually

STATUS = "$SYS/broker/routes/Invented/status"


class Passwords(BaseAuthPlugin):
    """A user's password is his name backwards."""

    async def authenticate(self, *, session: Session) -> bool | None:
        return session.username is not None and session.password == session.username[::-1]


class Rights(BaseTopicPlugin):
    """Users publish below their names and below `all`; a topic with `broken` in it breaks the plugin."""

    def __init__(self, context: BaseContext) -> None:
        super().__init__(context)

    async def topic_filtering(
        self, *, session: Session | None = None, topic: str | None = None, action: Action | None = None
    ) -> bool | None:
        assert session is not None
        assert topic is not None
        if "broken" in topic:
            raise RuntimeError("the plugin is broken")
        return action is not Action.PUBLISH or topic.split("/")[0] in {session.username, "all"}


PLUGINS: dict[str, Any] = {
    "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": False},
    "tests.broker.repairs.test_wills.Passwords": {},
    "tests.broker.repairs.test_wills.Rights": {},
}


def route(target: Recorder) -> str:
    posts = 'WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{topic} {payload}"'
    return f"""DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG
            WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true" WITH DEFAULT_CONTENT_TYPE "text/plain"
        ADD EVENT Seen WITH SOURCE_TOPIC "#" {posts}
        ADD EVENT Forged WITH SOURCE_TOPIC "{STATUS}" {posts}
    """


@pytest.fixture
def host(target: Recorder) -> Iterator[Host]:
    with hosting(route(target), plugins=PLUGINS, status_seconds=60, workers=1) as running:
        yield running


class Listener(Wire):
    """A subscriber to everything, status topics too."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.mqtt_port, "listener", login=("all", "lla"), timeout=10)
        self.subscribe("#")
        self.subscribe("$SYS/#")

    def until(self, last: str) -> list[tuple[str, bytes]]:
        """Publish a last message and return what came before it; the route's own status is left out."""
        self.send(publish_packet(f"all/{last}", b""))
        found: list[tuple[str, bytes]] = []
        while ("all/" + last, b"") not in found:
            found += self.messages()
        return [message for message in found[:-1] if message[0] != "$SYS/broker/routes/R/status"]


def user(host: Host, name: str, client_id: str, **options: Any) -> Wire:
    return Wire(host.mqtt_port, client_id, login=(name, name[::-1]), timeout=10, **options)


def requests(target: Recorder, last: str) -> list[bytes]:
    """Return what the route has sent, up to a last message."""
    bodies: list[bytes] = []
    while not bodies or bodies[-1] != f"all/{last} ".encode():
        bodies.append(target.request().body)
    return bodies[:-1]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "persistent"])
def test_the_will_of_a_client_that_may_publish_reaches_subscribers_and_routes_and_is_retained(
    host: Host, target: Recorder, clean: bool
) -> None:
    listener = Listener(host)
    ann = user(host, "ann", "a", will=("ann/gone", b"bye"), will_retain=True, clean=clean)
    host.cut_off(ann.sock, "a")
    assert listener.until("end") == [("ann/gone", b"bye")]
    assert requests(target, "end") == [b"ann/gone bye"]
    assert bytes(host.broker.retained_messages["ann/gone"].data) == b"bye"
    listener.close()


@pytest.mark.parametrize("retain", [True, False], ids=["retained", "not retained"])
@pytest.mark.parametrize("topic", [STATUS, "$SYS/broker/clients", "$other", "bob/gone", "ann/+", "ann/#", "ann/broken"])
def test_a_will_is_not_sent_on_a_topic_where_its_client_may_not_publish(
    host: Host, target: Recorder, topic: str, retain: bool
) -> None:
    listener = Listener(host)
    ann = user(host, "ann", "a", will=(topic, b'{"name":"Invented","health":"Green"}'), will_retain=retain)
    host.cut_off(ann.sock, "a")
    assert listener.until("end") == []
    assert requests(target, "end") == []
    assert topic not in host.broker.retained_messages
    listener.close()


@pytest.mark.parametrize("topic", ["$SYS/broker/clients", "$SYS/gone", "$other/gone", "$other"])
def test_a_will_is_not_sent_on_a_topic_of_the_broker_even_if_the_acl_permits_it(
    host: Host, target: Recorder, topic: str
) -> None:
    listener = Listener(host)
    named_so = user(host, topic.split("/")[0], "a", will=(topic, b"{}"), will_retain=True)
    host.cut_off(named_so.sock, "a")
    assert listener.until("end") == []
    assert requests(target, "end") == []
    assert topic not in host.broker.retained_messages
    listener.close()


def test_a_will_is_not_sent_after_a_disconnect(host: Host) -> None:
    listener = Listener(host)
    ann = user(host, "ann", "a", will=("ann/gone", b"bye"))
    with host.ending("a"):
        ann.close()
    assert listener.until("end") == []
    listener.close()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "persistent"])
@pytest.mark.parametrize("victim_clean", [True, False], ids=["of a clean session", "of a persistent session"])
def test_a_client_that_is_refused_changes_nothing_for_the_client_whose_id_it_names(
    host: Host, target: Recorder, victim_clean: bool, clean: bool
) -> None:
    listener = Listener(host)
    ann = user(host, "ann", "a", will=("ann/gone", b"bye"), clean=victim_clean)
    ann.subscribe("all/news")
    for login in (("ann", "wrong"), ("bob", "wrong")):
        will = (f"{login[0]}/forged", b"forged")
        with pytest.raises(ConnectionRefusedError, match="CONNACK 5"):
            Wire(host.mqtt_port, "a", login=login, timeout=10, will=will, will_retain=True, clean=clean)
    listener.send(publish_packet("all/news", b"still here"))
    assert ann.messages() == [("all/news", b"still here")]
    ann.send(publish_packet("ann/own", b"", 1))
    ann.expect(0x40)
    host.cut_off(ann.sock, "a")
    assert listener.until("end") == [("all/news", b"still here"), ("ann/own", b""), ("ann/gone", b"bye")]
    assert requests(target, "end") == [b"all/news still here", b"ann/own ", b"ann/gone bye"]
    assert set(host.broker.retained_messages) <= {"$SYS/broker/routes/R/status"}
    listener.close()


def test_clients_that_are_refused_leave_nothing_in_the_broker(host: Host) -> None:
    for number in range(20):
        with pytest.raises(ConnectionRefusedError):
            Wire(host.mqtt_port, f"stranger-{number}", login=("ann", "wrong"), will=("ann/gone", b""), clean=False)
    assert not host.broker._sessions
    eventually(lambda: host.broker._servers["default"].conn_count == 0, "a connection counts although it has ended")


def test_a_take_over_ends_the_earlier_connection_and_sends_the_will_of_that_connection(host: Host) -> None:
    listener = Listener(host)
    ann = user(host, "ann", "a", will=("ann/gone", b"first"), clean=False)
    ann.subscribe("all/news", 1)
    bob = user(host, "bob", "a", will=("bob/gone", b"second"), clean=False)
    with pytest.raises(ConnectionError):
        ann.receive()
    ann.sock.close()
    listener.send(publish_packet("all/news", b"for the session"))
    while ("all/news", b"for the session") not in bob.messages():  # amqtt sends what is retained too
        pass
    host.cut_off(bob.sock, "a")
    assert [topic for topic, _ in listener.until("end")] == ["ann/gone", "all/news", "bob/gone"]
    listener.close()


def test_a_will_needs_the_rights_of_the_user_who_left_it(host: Host) -> None:
    listener = Listener(host)
    bob = user(host, "bob", "a", will=("ann/gone", b"forged"), clean=False)
    ann = user(host, "ann", "a", clean=False)
    host.cut_off(ann.sock, "a")
    assert listener.until("end") == []
    bob.sock.close()
    listener.close()


def test_only_the_bridge_publishes_on_status_topics(
    host: Host, target: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    listener, context = Listener(host), host.plugin.context
    own = "$SYS/broker/routes/R/status"
    eventually(lambda: own in host.broker.retained_messages, "the bridge's own status is not retained")
    for topic in (STATUS, own):
        host.wait(context.broadcast_message(topic, b'{"name":"Invented"}'))
        host.wait(context.retain_message(topic, b'{"name":"Invented"}'))
    with contextlib.closing(user(host, "ann", "a")) as ann:
        ann.send(publish_packet(STATUS, b"{}"))
    assert listener.until("end") == []
    assert not [body for body in requests(target, "end") if b"Invented" in body]
    assert json.loads(host.broker.retained_messages[own].data)["name"] == "R"
    assert STATUS not in host.broker.retained_messages
    assert [one["name"] for one in overview(f"mqtt://ann:nna@127.0.0.1:{host.mqtt_port}").statuses] == ["R"]
    assert "is published by the bridge alone" in caplog.text
    listener.close()


def test_a_route_does_not_publish_on_status_topics_either(target: Recorder) -> None:
    routes = f"""DEFINE ROUTE Forger WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true"
        ADD EVENT E
            WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}" WITH RETAIN "true"
            WITH DESTINATION_TOPIC "{STATUS}"
        ADD EVENT F
            WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
            WITH DESTINATION_TOPIC "out"
    """
    with hosting(routes) as host:
        client = host.client("$SYS/#", "out")
        for body in (b"1", b"2"):
            client.publish("in", body)
            assert client.message() == ("out", body)
        eventually(lambda: host.program._outcomes.statistics["Forger"].succeeded == 4, "not published")
        assert STATUS not in host.broker.retained_messages


@pytest.mark.parametrize(("topic", "body"), [("ready", b"[]"), ("broker", b'{"dropped": 7}'), ("ready", b"x")])
def test_a_request_that_fills_in_a_topic_of_the_private_endpoint_changes_nothing(
    target: Recorder, topic: str, body: bytes
) -> None:
    routes = f"""DEFINE ROUTE Calls WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true"
            WITH ENABLE_SERVER "true" WITH SERVER_PORT '0'
        ADD EVENT E
            WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
            WITH DESTINATION_TOPIC "out"
        ADD EVENT Hook
            WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "$rest-bridge/{{query.topic}}"
    """
    with hosting(routes) as host:
        client = host.client("out")
        ask(host.http_port, f"/hook?topic={topic}", body)
        client.publish("in", b"as before")
        assert client.message() == ("out", b"as before")
        assert host.plugin.endpoint.ready.is_set()
        assert host.program.broker_state.dropped == 0


def test_a_will_that_waits_for_a_slow_acl_is_sent_on_its_own_topic_although_a_later_connection_has_another(
    host: Host, target: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, asked, may = Rights.topic_filtering, threading.Event(), threading.Event()

    async def slow(
        self: Rights, *, session: Session | None = None, topic: str | None = None, action: Any = None
    ) -> Any:
        if topic == "ann/gone" and action is Action.PUBLISH:
            asked.set()
            await asyncio.to_thread(may.wait, 10)
        return await ask(self, session=session, topic=topic, action=action)

    monkeypatch.setattr(Rights, "topic_filtering", slow)
    listener = Listener(host)
    ann = user(host, "ann", "a", will=("ann/gone", b"first"), clean=False)
    ann.subscribe("all/news")
    ann.sock.close()
    assert asked.wait(SECONDS)
    later = user(host, "ann", "a", will=(STATUS, b"forged"), will_retain=True, clean=False)
    may.set()
    while ("ann/gone", b"first") not in listener.messages():
        pass
    listener.send(publish_packet("all/news", b"to the session"))
    while ("all/news", b"to the session") not in later.messages():  # the earlier end did not end this connection
        pass
    assert [topic for topic, _ in listener.until("end")] == ["all/news"]
    assert STATUS not in host.broker.retained_messages
    later.sock.close()
    listener.close()


def test_messages_of_a_sessions_earlier_user_are_not_sent_by_the_rights_of_the_next(
    host: Host, target: Recorder
) -> None:
    bob = user(host, "bob", "a", clean=False)
    bob.send(b"".join(publish_packet("ann/forged", b"%d" % number, number) for number in range(1, 1000)))
    bob.expect(0x40)
    ann = user(host, "ann", "a", clean=False)  # whose client has connected again, as clients do
    ann.send(publish_packet("all/end", b"", 1))
    ann.expect(0x40)
    assert requests(target, "end") == []
    bob.sock.close()
    ann.close()
