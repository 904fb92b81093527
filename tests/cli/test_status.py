"""`rest-bridge status` against a real bridge and a real broker: printed once, on a terminal, and how it connects."""

import asyncio
import contextlib
import json
import re
import signal
import threading
from collections.abc import Iterator

import pytest
from amqtt.contexts import Action, BaseContext
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import Session

from amqtt_rest_bridge.cli.admin_client import AdminClient, AdminError
from amqtt_rest_bridge.cli.broker_client import BrokerUnavailableError, broker_address
from amqtt_rest_bridge.cli.status import Overview, watch_bridge, watch_broker
from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.group.leases import Lease
from tests.cli.conftest import Run
from tests.cli.test_status_table import status
from tests.support.admin_client import TOKEN, admin_of
from tests.support.commands import SERVER_ROUTE, overview, taken_port
from tests.support.embedded_broker import Host, hosting, plain_broker
from tests.support.http_ports import Raw, post
from tests.support.http_recorder import Recorder
from tests.support.http_target import Peer, Target, silent
from tests.support.terminal import Terminal
from tests.support.waiting import eventually

ROUTES = "$SYS/broker/routes"
CONTROL = re.compile(r"\x1b\[[\d;?]*\w")


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """Run a broker on which anything may be retained: with the bridge, its status topics are its own."""
    with plain_broker() as running:
        yield running


@pytest.fixture
def retained(host: Host) -> Iterator[None]:
    """Retain what a test wants; all of it is taken back at the end."""
    for name in ("b", "a"):
        retain(host, name, json.dumps(status(name)).encode())
    retain(host, "broken", b"no json")
    host.wait(host.broker.retain_message(None, "$SYS/broker/uptime", b"3"))
    yield
    for topic in list(host.broker.retained_messages):
        host.wait(host.broker.retain_message(None, topic, b""))


def retain(host: Host, route: str, payload: bytes) -> None:
    host.wait(host.broker.retain_message(None, f"{ROUTES}/{route}/status", payload))


def publish(host: Host, route: str, payload: bytes) -> None:
    host.wait(host.broker.internal_message_broadcast(f"{ROUTES}/{route}/status", payload))


def url(host: Host, credentials: str = "") -> str:
    return f"mqtt://{credentials}127.0.0.1:{host.mqtt_port}"


def interrupt(terminal: Terminal, number: signal.Signals = signal.SIGINT) -> str:
    """End a table as Ctrl-C does, and return what is behind it, without control sequences."""
    terminal.process.send_signal(number)
    assert terminal.end() == 130
    return CONTROL.sub("", terminal.text.rpartition("\x1b[?1049l")[2])


def test_retained_statuses_are_printed_once_as_a_table_or_as_json(host: Host, retained: None, run: Run) -> None:
    shown = run("status", "--broker", url(host)).out.splitlines()
    assert [line.split()[0] for line in shown] == ["ROUTE", "a", "b", "a:", "b:", "counters"]
    assert not any(line.endswith(" ") for line in shown)
    assert json.loads(run("status", "--broker", url(host), "--json").out) == [status("a"), status("b")]


def test_routes_without_a_status_are_an_empty_list(host: Host, run: Run) -> None:
    assert run("status", "--broker", url(host), "--json").out == "[]\n"
    printed = run("status", "--broker", url(host))
    assert printed.out == ""
    assert printed.err.startswith("no route has a status yet")
    assert "--group NAME" in printed.err


def test_a_group_that_nothing_is_known_of_is_none_and_one_with_slots_is_one(host: Host, run: Run) -> None:
    group = ("status", "--broker", url(host), "--group", "plant")
    for options in ((), ("--json",)):
        printed = run(*group, *options, status=1)
        assert (printed.out, printed.err.splitlines()[0]) == ("", f"no group plant at {url(host)}")
        assert printed.err.splitlines()[1].startswith("hint: ")
    for lease in (Lease("", 0.0, "aaaa", "1.0", 1, 0.0).payload, b""):  # a released slot
        host.wait(host.broker.retain_message(None, "bridge/plant/0/lease", lease))
        if lease:
            assert run(*group).err.startswith("no worker of this group has a status yet")


@pytest.mark.parametrize("count", [100, pytest.param(500, marks=pytest.mark.long)])
def test_every_one_of_many_statuses_is_there(host: Host, retained: None, count: int) -> None:
    for number in range(count):
        retain(host, f"r{number}", json.dumps(status(f"r{number}")).encode())
    assert len(overview(url(host)).statuses) == count + 2


@pytest.fixture
def reloading() -> Iterator[Host]:
    """Run a bridge that notices changed files at once."""
    with hosting(SERVER_ROUTE, admin_port=0, status_seconds=60, reload_seconds=0.02) as host:
        yield host


BROKEN = "DEFINE ROUTE R WITH TYPE REST_API\n    ADD NONSENSE\n"


def test_a_reload_that_failed_is_shown_until_one_succeeds(reloading: Host, run: Run) -> None:
    client = reloading.client(f"{ROUTES}/reload")
    reloading.path.write_text(BROKEN)
    failure = json.loads(client.message()[1])
    assert (failure["errors"] >= 1, failure["message"].startswith(f"{reloading.path}:")) == (True, True)
    shown = run("status", "--broker", url(reloading)).err
    assert shown.startswith("reload failed ")
    first = f"{reloading.path}:1:1: error: route R has no"
    assert f"current routes: 2 errors in the route files, the first: {first}" in shown
    reloading.path.write_text(SERVER_ROUTE)
    assert client.message() == (f"{ROUTES}/reload", b"")
    assert run("status", "--broker", url(reloading)).err == ""


def test_what_keeps_the_bridge_from_being_ready_is_said(reloading: Host, run: Run) -> None:
    reloading.path.write_text(BROKEN)
    eventually(lambda: admin_of(reloading).get("/readyz").status == 503)
    printed = run("status", "--admin", f"http://127.0.0.1:{reloading.admin_port}")
    assert printed.err.startswith("not ready: the last reload failed, the routes before it are in use: ")
    assert printed.out.splitlines()[1].startswith("Intake ")


def test_what_the_plugin_publishes_is_shown_also_if_it_publishes_without_a_pause(run: Run) -> None:
    with hosting(SERVER_ROUTE, status_seconds=0.01) as reporting:
        reporting.client(reporting.status_filter).messages(3)
        (one,) = json.loads(run("status", "--broker", url(reporting), "--json").out)
    assert (one["name"], one["type"], one["health"]) == ("Intake", "REST_API", "Green")


def test_a_route_that_refuses_its_callers_says_so_below_the_table(run: Run) -> None:
    guarded = SERVER_ROUTE.replace("WITH SERVER_PORT", 'WITH SERVER_TOKEN "a-long-token"\n        WITH SERVER_PORT')
    with hosting(guarded, status_seconds=0.1) as reporting, Raw(reporting.http_port) as raw:
        assert raw.ask(post("/webhook", b"x", "Authorization: Bearer wrong")).status == 401
        client = reporting.client(reporting.status_filter)
        while json.loads(client.message()[1])["health"] != "Yellow":
            pass
        shown = [line.rstrip() for line in run("status", "--broker", url(reporting)).out.splitlines()]
    assert "Intake: callers refused: 1 of the last 1 requests, the last one with 401 unauthorized" in shown
    assert shown[1].split()[:2] == ["Intake", "Yellow"]


def test_table_follows_changes_and_removals(host: Host, retained: None) -> None:
    async def names_seen() -> list[list[str]]:
        seen: list[list[str]] = []
        async with contextlib.aclosing(watch_broker(broker_address(url(host)), None)) as overviews:
            async for overview in overviews:
                seen.append(sorted(one["name"] for one in overview.statuses))
                if len(seen) == 1:
                    publish(host, "new", b'{"name": "new"}')
                elif "new" in seen[-1] and "a" in seen[-1]:
                    publish(host, "a", b"")
                elif "new" in seen[-1]:
                    break
        return seen

    seen = asyncio.run(names_seen())
    assert (seen[0], seen[-1]) == (["a", "b"], ["b", "new"])


def test_end_of_the_broker_ends_the_table() -> None:
    with hosting(SERVER_ROUTE) as ending:
        stops = threading.Thread(target=ending.stop)
        address = broker_address(url(ending))

        async def follow() -> None:
            async for _ in watch_broker(address, None):
                if stops.ident is None:
                    stops.start()

        with pytest.raises(BrokerUnavailableError, match=f"^{address.shown} closed the connection$"):
            asyncio.run(follow())
        stops.join()
        ending.stop = lambda: None  # type: ignore[method-assign]  # it has


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_terminal_shows_the_table_in_place_until_interrupted(
    host: Host, retained: None, number: signal.Signals
) -> None:
    terminal = Terminal("status", "--broker", url(host, "u:geheim@"))
    terminal.expect(r"\x1b\[Hmqtt://127\.0\.0\.1:\d+  \d\d:\d\d:\d\d  2 routes: 2 Green  \(Ctrl-C ends\) *\r?\n")
    terminal.expect(r"a +\x1b\[32mGreen *\x1b\[0m")
    publish(host, "a", b'{"name": "a", "health": "Red"}')
    terminal.expect(r"\x1b\[H.*2 routes: 1 Red, 1 Green")
    terminal.expect(r"a +\x1b\[31mRed *\x1b\[0m")
    last = interrupt(terminal, number)
    assert "geheim" not in terminal.text
    assert {"\x1b[?1049h", "\x1b[?25l"} <= set(re.findall(r"\x1b\[\?\d+[hl]", terminal.text.partition("mqtt://")[0]))
    before, back, _ = terminal.text.rpartition("\x1b[?1049l")
    assert back
    assert "\x1b[?25h" in terminal.text
    below = r"b: last error, Green now: timeout: .* ago\)\r\n"
    assert re.fullmatch(rf"mqtt://.*\r\nROUTE .*\r\na .*\r\nb .*\r\n{below}", last, re.DOTALL)
    assert all(len(CONTROL.sub("", line)) <= 90 for line in re.split(r"\r\n|\x1b\[H", before))


def test_terminate_ends_the_table_where_interrupts_are_ignored(host: Host, retained: None) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts the background jobs of a script
    try:
        terminal = Terminal("status", "--broker", url(host), interpreter=True)
    finally:
        signal.signal(signal.SIGINT, before)
    terminal.expect(r"2 routes: 2 Green")
    terminal.process.send_signal(signal.SIGINT)
    interrupt(terminal, signal.SIGTERM)
    assert terminal.text.count("\x1b[?1049h") == terminal.text.count("\x1b[?1049l") == 1


def test_terminal_is_given_back_when_the_broker_cannot_be_reached() -> None:
    with taken_port() as port:
        pass
    terminal = Terminal("status", "--broker", f"mqtt://127.0.0.1:{port}")
    assert terminal.end() == 1
    assert terminal.text.endswith("connection refused; is the broker running?\r\n")
    assert terminal.text.count("\x1b[?1049h") == terminal.text.count("\x1b[?1049l")


def test_interrupt_while_connecting_ends_it() -> None:
    with Target(silent) as target:
        terminal = Terminal("status", "--broker", f"mqtt://127.0.0.1:{target.port}")
        terminal.expect(r"\x1b\[\?1049h")
        interrupt(terminal)


def test_terminal_of_80_columns_without_colours_shows_every_number_and_the_whole_name(
    host: Host, retained: None
) -> None:
    name = "Intake_of_orders_from_Porto_and_its_two_warehouses.v2"
    retain(host, name, json.dumps(status(name, latency_ms={"p50": 324.54, "p99": 12345.67})).encode())
    terminal = Terminal("status", "--broker", url(host), columns=80, NO_COLOR="1")
    terminal.expect("counters up to ")
    last = interrupt(terminal).splitlines()
    assert "\x1b[32m" not in terminal.text
    table = [line for line in last if not line.startswith(("mqtt:", "counters", "a:", "b:", f"{name}:", "("))]
    assert all(len(line) <= 80 for line in table)
    words = " ".join(table).split()
    assert {"324.5", "12345.7", "1234", "1200", "30", "7", "4", "5", "16", "Green", "connected"} <= set(words)
    assert name in "".join(line.partition(" ")[0] for line in table)
    assert any(line.startswith("counters up to ") for line in last)


def test_lines_beyond_the_height_of_the_terminal_are_counted(host: Host, retained: None) -> None:
    for number in range(60):
        retain(host, f"r{number}", b'{"name": "r%d"}' % number)
    terminal = Terminal("status", "--broker", url(host), NO_COLOR="1")
    terminal.expect(r"\r\n\.\.\. and \d+ more lines ")
    assert "r59 " in interrupt(terminal)
    assert "r59 " not in terminal.text.rpartition("\x1b[?1049l")[0]


# How it connects.

HERE = "tests.cli.test_status"


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


def test_credentials_of_the_url_are_used_decoded_and_a_refusal_is_printed_without_the_password(run: Run) -> None:
    with hosting(SERVER_ROUTE, {f"{HERE}.OneUser": {}}) as gated:
        assert overview(url(gated, "mon%3Aitor:s%2Fcr%40t@")).statuses == []
        printed = run("status", "--broker", url(gated, "monitor:geheim@"), status=1)
        assert printed.err == (
            f"rest-bridge status: cannot connect to {url(gated)}: "
            "not authorized: check user name (mqtt://USER@HOST) and password (REST_BRIDGE_BROKER_PASSWORD)\n"
        )


def test_forbidden_subscription_is_printed() -> None:
    with (
        hosting(SERVER_ROUTE, {f"{HERE}.NoSubscriptions": {}}) as strict,
        pytest.raises(BrokerUnavailableError, match=r"a subscription to \$SYS/broker/routes/\+/status$"),
    ):
        overview(url(strict))


@pytest.mark.parametrize(
    ("answer", "scheme", "why"),
    [
        pytest.param(b"", "mqtt", "it closed the connection; is it an MQTT broker?", id="nothing"),
        pytest.param(b"\x20\x02\x00\x04", "mqtt", "wrong user name or password", id="wrong-password"),
        pytest.param(b"\x20\x02\x00\x03", "mqtt", "it is not available", id="not-available"),
        pytest.param(b"\x20\x02\x00\x63", "mqtt", "it answers with code 99", id="unknown-code"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", "mqtts", "", id="no-tls"),
        pytest.param(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "ws", "", id="no-websocket"),
    ],
)
def test_peer_that_is_not_an_mqtt_broker_is_printed(answer: bytes, scheme: str, why: str) -> None:
    def script(peer: Peer) -> None:
        peer.sock.recv(1000)
        peer.send(answer)

    with Target(script) as target, pytest.raises(BrokerUnavailableError) as caught:
        overview(f"{scheme}://127.0.0.1:{target.port}")
    assert str(caught.value).startswith(f"cannot connect to {scheme}://127.0.0.1:{target.port}: {why}")
    assert "\n" not in str(caught.value)


def test_peer_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqtt_rest_bridge.mqtt.connection.CONNECT_SECONDS", 0.2)
    with Target(silent) as target, pytest.raises(BrokerUnavailableError, match="no answer within 0 s; is it an MQTT"):
        overview(f"mqtt://127.0.0.1:{target.port}")


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
def test_address_that_is_none_is_refused_without_repeating_it(given: str, run: Run) -> None:
    with pytest.raises(ConfigurationError, match=r"^--broker is not the address of a broker; write mqtt://\[USER"):
        broker_address(given)
    assert "geheim" not in run("status", "--broker", given, status=2).err


# The figures of now, from the admin port.


@pytest.fixture
def bridge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """Run a bridge that never publishes a status, and name its admin port in the environment."""
    with hosting(SERVER_ROUTE, status_seconds=0, admin_port=0, admin_token=TOKEN) as running:
        monkeypatch.setenv("REST_BRIDGE_ADMIN", f"http://127.0.0.1:{running.admin_port}")
        monkeypatch.setenv("REST_BRIDGE_ADMIN_TOKEN", TOKEN)
        yield running


def test_the_admin_port_has_the_figures_of_now(bridge: Host, run: Run) -> None:
    for count in (1, 2):
        with Raw(bridge.http_port) as raw:
            assert raw.ask(post("/webhook", b"x")).status == 200
        (one,) = json.loads(run("status", "--json").out)
        assert (one["name"], one["messages"]["succeeded"]) == ("Intake", count)
    title, row, *_, age = run("status").out.splitlines()
    assert re.fullmatch(r"as of \d\d:\d\d:\d\d", age)
    assert (title.split()[:5], row.split()[:5]) == (
        ["ROUTE", "HEALTH", "CONNECTION", "TOTAL", "OK"],
        ["Intake", "Green", "connected", "2", "2"],
    )
    assert run("status", "--broker", url(bridge), "--json").out == "[]\n"


def test_terminal_follows_the_admin_port(bridge: Host) -> None:
    terminal = Terminal("status", NO_COLOR="1")
    terminal.expect(r"http://127\.0\.0\.1:\d+  \d\d:\d\d:\d\d  1 route: 1 Green  \(Ctrl-C ends\)")
    with Raw(bridge.http_port) as raw:
        assert raw.ask(post("/webhook", b"x")).status == 200
    terminal.expect(r"Intake +Green +connected +1 +1 ")
    interrupt(terminal)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(
            [], "name a bridge with --admin http://HOST:PORT or REST_BRIDGE_ADMIN, or its broker with --b", id="none"
        ),
        pytest.param(["--group", "plant"], "add --broker mqtt://HOST:PORT", id="group"),
        pytest.param(["--admin", "http://h", "--broker", "mqtt://h"], "give one of them", id="two"),
        pytest.param(["--admin", "localhost"], "--admin is not an address; write http://HOST:PORT", id="no address"),
    ],
)
def test_nothing_is_asked_without_one_address(arguments: list[str], said: str, run: Run) -> None:
    assert said in run("status", *arguments, status=2).err


def test_a_bridge_that_is_away_for_a_moment_ends_no_table(target: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amqtt_rest_bridge.cli.status._REFRESH_SECONDS", 0.01)
    content = json.dumps({"routes": [status("a"), 3], "reasons": []}).encode()
    seen: list[Overview] = []

    target.answer = lambda _: (200, content)
    for one in watch_bridge(AdminClient(target.url)):
        seen.append(one)
        target.answer = lambda _: (500, b"") if len(seen) == 1 else (200, content)
        if len(seen) == 3:
            break
    assert [[one["name"] for one in overview.statuses] for overview in seen] == [["a"]] * 3
    assert [len(overview.troubles) for overview in seen] == [0, 1, 0]
    target.answer = lambda _: (500, b"")
    with pytest.raises(AdminError, match="this is not the admin port of a bridge"):
        next(watch_bridge(AdminClient(target.url)))
