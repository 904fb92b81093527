"""Last wills are sent for admitted clients, on topics where these may publish; status topics are the bridge's."""

import contextlib
import itertools
import json
from collections.abc import Iterator

import pytest

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.broker.repairs.users import USERS, Rights, user
from tests.support.asking import ask
from tests.support.commands import overview
from tests.support.embedded_broker import Host, hosting
from tests.support.http_recorder import Recorder, recording
from tests.support.waiting import SECONDS, eventually

STATUS = "$SYS/broker/routes/Invented/status"
OWN_STATUS = "$SYS/broker/routes/R/status"
IDS = (f"client-{number}" for number in itertools.count())


def route(target: Recorder) -> str:
    posts = 'WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{topic} {payload}"'
    return f"""DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG
            WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true" WITH DEFAULT_CONTENT_TYPE "text/plain"
        ADD EVENT Seen WITH SOURCE_TOPIC "#" {posts}
        ADD EVENT Forged WITH SOURCE_TOPIC "{STATUS}" {posts}
    """


class Watched:
    """A broker, and what its messages reach: a subscriber to everything, status topics too, and a route."""

    def __init__(self, host: Host, target: Recorder, listener: Wire) -> None:
        self.host, self._target, self.listener = host, target, listener
        self.client_id = next(IDS)
        """The id of the clients of one test."""
        self._found: list[tuple[str, bytes]] = []

    @property
    def retained(self) -> dict[str, bytes]:
        return {topic: bytes(message.data or b"") for topic, message in self.host.broker.retained_messages.items()}

    def client(self, name: str, **options: object) -> Wire:
        return user(self.host, name, self.client_id, **options)

    def cut_off(self, client: Wire) -> None:
        self.host.cut_off(client.sock, self.client_id)

    def seen(self) -> list[tuple[str, bytes]]:
        """Publish a last message, and return what the subscriber and the server of the route were sent before it."""
        self.listener.send(publish_packet(last := f"all/{self.client_id}", b""))
        self.await_message(last, b"")
        bodies: list[bytes] = []
        while not bodies or bodies[-1] != f"{last} ".encode():
            bodies.append(self._target.request().body)
        assert bodies == [topic.encode() + b" " + payload for topic, payload in self._found]
        return self._found[:-1]

    def await_message(self, topic: str, payload: bytes) -> None:
        while (topic, payload) not in self._found:
            self._found += [message for message in self.listener.messages() if message[0] != OWN_STATUS]


@pytest.fixture(scope="module")
def parts() -> Iterator[tuple[Host, Recorder, Wire]]:
    with recording() as target, hosting(route(target), plugins=USERS, status_seconds=60, workers=1) as host:
        listener = user(host, "listener")
        listener.subscribe("#")
        listener.subscribe("$SYS/#")
        yield host, target, listener
        listener.close()


@pytest.fixture
def watched(parts: tuple[Host, Recorder, Wire]) -> Watched:
    return Watched(*parts)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "persistent"])
def test_the_will_of_a_client_that_may_publish_reaches_subscribers_and_routes_and_is_retained(
    watched: Watched, clean: bool
) -> None:
    topic = f"ann/gone/{clean}"
    watched.cut_off(watched.client("ann", will=(topic, b"bye"), will_retain=True, clean=clean))
    assert watched.seen() == [(topic, b"bye")]
    assert watched.retained[topic] == b"bye"


@pytest.mark.parametrize(
    ("name", "topic", "retain"),
    [
        pytest.param("ann", STATUS, True, id="status topic"),
        pytest.param("ann", STATUS, False, id="status topic, not retained"),
        pytest.param("ann", "$SYS/broker/clients", True, id="$SYS"),
        pytest.param("ann", "bob/gone", True, id="another user's"),
        pytest.param("ann", "bob/gone", False, id="another user's, not retained"),
        pytest.param("ann", "ann/+", True, id="plus"),
        pytest.param("ann", "ann/#", True, id="hash"),
        pytest.param("ann", "ann/broken", True, id="an ACL that fails"),
        pytest.param("$SYS", "$SYS/broker/clients", True, id="$SYS, which the ACL permits"),
        pytest.param("$SYS", "$SYS/gone", True, id="a new topic in $SYS, which the ACL permits"),
        pytest.param("$other", "$other/gone", True, id="another topic of the broker, which the ACL permits"),
        pytest.param("$other", "$other", True, id="a topic of one level, which the ACL permits"),
    ],
)
def test_a_will_is_not_sent_on_a_topic_where_its_client_may_not_publish(
    watched: Watched, name: str, topic: str, retain: bool
) -> None:
    payload = b'{"name":"Invented","health":"Green"}'
    watched.cut_off(watched.client(name, will=(topic, payload), will_retain=retain))
    assert watched.seen() == []
    assert topic not in watched.retained


def test_a_will_is_not_sent_after_a_disconnect(watched: Watched) -> None:
    ann = watched.client("ann", will=("ann/gone", b"bye"))
    with watched.host.ending(watched.client_id):
        ann.close()
    assert watched.seen() == []


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "persistent"])
@pytest.mark.parametrize("victim_clean", [True, False], ids=["of a clean session", "of a persistent session"])
def test_a_client_that_is_refused_changes_nothing_for_the_client_whose_id_it_names(
    watched: Watched, victim_clean: bool, clean: bool
) -> None:
    port, before = watched.host.mqtt_port, watched.retained.keys()
    ann = watched.client("ann", will=("ann/gone", b"bye"), clean=victim_clean)
    ann.subscribe("all/news")
    for name in ("ann", "bob"):
        forged = (f"{name}/forged", b"forged")
        with pytest.raises(ConnectionRefusedError, match="CONNACK 5"):
            Wire(port, watched.client_id, login=(name, "wrong"), will=forged, will_retain=True, clean=clean)
    watched.listener.send(publish_packet("all/news", b"still here"))
    assert ann.messages() == [("all/news", b"still here")]
    ann.send(publish_packet("ann/own", b"", 1))
    ann.expect(0x40)
    watched.cut_off(ann)
    assert watched.seen() == [("all/news", b"still here"), ("ann/own", b""), ("ann/gone", b"bye")]
    assert watched.retained.keys() - before <= {OWN_STATUS}


def test_clients_that_are_refused_leave_nothing_in_the_broker(watched: Watched) -> None:
    broker, will = watched.host.broker, ("ann/gone", b"")
    for number in range(20):
        with pytest.raises(ConnectionRefusedError):
            Wire(watched.host.mqtt_port, f"stranger-{number}", login=("ann", "wrong"), will=will, clean=False)
    assert not [client_id for client_id in broker._sessions if client_id.startswith("stranger")]
    eventually(lambda: broker._servers["default"].conn_count == 1, "a connection counts although it has ended")


def test_a_take_over_ends_the_earlier_connection_and_sends_the_will_of_that_connection(watched: Watched) -> None:
    ann = watched.client("ann", will=("ann/gone", b"first"), clean=False)
    ann.subscribe("all/news", 1)
    bob = watched.client("bob", will=("bob/gone", b"second"), clean=False)
    with pytest.raises(ConnectionError):
        ann.receive()
    ann.sock.close()
    watched.listener.send(publish_packet("all/news", b"for the session"))
    assert bob.messages() == [("all/news", b"for the session")]
    watched.cut_off(bob)
    assert [topic for topic, _ in watched.seen()] == ["ann/gone", "all/news", "bob/gone"]


def test_a_will_needs_the_rights_of_the_user_who_left_it(watched: Watched) -> None:
    bob = watched.client("bob", will=("ann/gone", b"forged"), clean=False)
    watched.cut_off(watched.client("ann", clean=False))
    assert watched.seen() == []
    bob.sock.close()


def test_a_will_that_waits_for_a_slow_acl_is_sent_on_its_own_topic_although_a_later_connection_has_another(
    watched: Watched, rights: type[Rights]
) -> None:
    ann = watched.client("ann", will=("ann/slow", b"first"), clean=False)
    ann.subscribe("all/news")
    ann.sock.close()
    assert rights.asked.wait(SECONDS)
    later = watched.client("ann", will=(STATUS, b"forged"), will_retain=True, clean=False)
    rights.may.set()
    watched.await_message("ann/slow", b"first")
    watched.listener.send(publish_packet("all/news", b"to the session"))
    assert later.messages() == [("all/news", b"to the session")]  # the earlier end did not end this connection
    watched.cut_off(later)
    assert watched.seen() == [("ann/slow", b"first"), ("all/news", b"to the session")]
    assert STATUS not in watched.retained


def test_messages_of_a_sessions_earlier_user_are_not_sent_by_the_rights_of_the_next(watched: Watched) -> None:
    bob = watched.client("bob", clean=False)
    bob.send(b"".join(publish_packet("ann/forged", b"%d" % number, number) for number in range(1, 1000)))
    bob.expect(0x40)
    ann = watched.client("ann", clean=False)  # whose client has connected again, as clients do
    assert watched.seen() == []
    bob.sock.close()
    ann.close()


def test_only_the_bridge_publishes_on_status_topics(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    host, context = watched.host, watched.host.plugin.context
    eventually(lambda: OWN_STATUS in watched.retained, "the bridge's own status is not retained")
    for topic in (STATUS, OWN_STATUS):
        host.wait(context.broadcast_message(topic, b'{"name":"Invented"}'))
        host.wait(context.retain_message(topic, b'{"name":"Invented"}'))
    with contextlib.closing(watched.client("ann")) as ann:
        ann.send(publish_packet(STATUS, b"{}"))
    assert watched.seen() == []
    assert json.loads(watched.retained[OWN_STATUS])["name"] == "R"
    assert STATUS not in watched.retained
    assert [one["name"] for one in overview(f"mqtt://ann:ann@127.0.0.1:{host.mqtt_port}").statuses] == ["R"]
    assert "is published by the bridge alone" in caplog.text


@pytest.fixture(scope="module")
def forging() -> Iterator[Host]:
    """A broker with routes that publish where only the bridge may, or its endpoint."""
    with recording() as target:
        posts = 'WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{payload}"'
        routes = f"""DEFINE ROUTE Forger WITH TYPE REST_API
            ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true"
                WITH ENABLE_SERVER "true" WITH SERVER_PORT '0'
            ADD EVENT Status {posts} WITH RETAIN "true" WITH DESTINATION_TOPIC "{STATUS}"
            ADD EVENT Other {posts} WITH DESTINATION_TOPIC "out"
            ADD EVENT Hook WITH METHOD "POST" WITH ENDPOINT "/hook"
                WITH DESTINATION_TOPIC "$rest-bridge/{{query.topic}}"
        """
        with hosting(routes) as host:
            yield host


def test_a_route_does_not_publish_on_status_topics_either(forging: Host) -> None:
    client, statistics = forging.client("$SYS/#", "out"), forging.program._outcomes.statistics["Forger"]
    before = statistics.succeeded
    for body in (b"1", b"2"):
        client.publish("in", body)
        assert client.message() == ("out", body)
    eventually(lambda: statistics.succeeded == before + 4, "not published")
    assert STATUS not in forging.broker.retained_messages


@pytest.mark.parametrize(("topic", "body"), [("ready", b"[]"), ("broker", b'{"dropped": 7}'), ("ready", b"x")])
def test_a_request_that_fills_in_a_topic_of_the_private_endpoint_changes_nothing(
    forging: Host, topic: str, body: bytes
) -> None:
    client = forging.client("out")
    ask(forging.http_port, f"/hook?topic={topic}", body)
    client.publish("in", b"as before")
    assert client.message() == ("out", b"as before")
    assert forging.plugin.endpoint.ready.is_set()
    assert forging.program.broker_state.dropped == 0
