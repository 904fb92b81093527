"""`rest-bridge status` against a real bridge and a real broker: printed once, on a terminal, and how it connects."""

import asyncio
import contextlib
import json
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from amqtt.contexts import Action, BaseContext
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from amqtt.session import Session

from amqtt_rest_bridge.__main__ import main
from amqtt_rest_bridge.cli.admin_client import AdminClient, AdminError
from amqtt_rest_bridge.cli.broker_client import BrokerUnavailableError, broker_address
from amqtt_rest_bridge.cli.status import Overview, watch_bridge, watch_broker
from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.group.leases import Lease
from tests.cli.test_status_table import status
from tests.support.admin_client import TOKEN, admin_of
from tests.support.commands import SERVER_ROUTE, overview, taken_port
from tests.support.embedded_broker import Host, configuration, hosting, plain_broker
from tests.support.http_ports import Raw, post
from tests.support.http_recorder import Recorder
from tests.support.http_target import Peer, Target, silent
from tests.support.terminal import Terminal
from tests.support.waiting import eventually

SECONDS = 30.0


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """Run a broker on which anything may be retained: with the bridge, its status topics are its own."""
    with plain_broker() as running:
        yield running


@pytest.fixture
def retained(host: Host) -> Iterator[dict[str, bytes]]:
    """Retain what a test wants; all of it is taken back at the end."""
    topics = {f"$SYS/broker/routes/{name}/status": json.dumps(status(name)).encode() for name in ("b", "a")}
    topics["$SYS/broker/routes/broken/status"] = b"no json"
    topics["$SYS/broker/uptime"] = b"3"
    for topic, payload in topics.items():
        host.wait(host.broker.retain_message(None, topic, payload))
    yield topics
    for topic in list(host.broker.retained_messages):
        host.wait(host.broker.retain_message(None, topic, b""))


def url(host: Host, credentials: str = "") -> str:
    return f"mqtt://{credentials}127.0.0.1:{host.mqtt_port}"


def test_retained_statuses_are_printed_once(
    host: Host, retained: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--broker", url(host)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == ["ROUTE", "a", "b", "a:", "b:", "counters"]
    assert not any(line.endswith(" ") for line in shown)


def test_json_is_a_list_of_the_payloads(
    host: Host, retained: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--broker", url(host), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [status("a"), status("b")]


def test_routes_without_a_status_are_an_empty_list(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--broker", url(host), "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"
    assert main(["status", "--broker", url(host)]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("no route has a status yet")
    assert "--group NAME" in printed.err


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_group_that_nothing_is_known_of_is_none(
    options: list[str], host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--broker", url(host), "--group", "plant", *options]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err.splitlines()[0]) == ("", f"no group plant at {url(host)}")
    assert printed.err.splitlines()[1].startswith("hint: ")


def test_a_group_whose_slots_are_all_released_is_one(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    released = Lease("", 0.0, "aaaa", "1.0", 1, 0.0).payload
    host.wait(host.broker.retain_message(None, "bridge/plant/0/lease", released))
    try:
        assert main(["status", "--broker", url(host), "--group", "plant"]) == 0
    finally:
        host.wait(host.broker.retain_message(None, "bridge/plant/0/lease", b""))
    assert capsys.readouterr().err.startswith("no worker of this group has a status yet")


@pytest.mark.parametrize("count", [100, pytest.param(500, marks=pytest.mark.long)])
def test_every_one_of_many_statuses_is_there(host: Host, retained: dict[str, bytes], count: int) -> None:
    for number in range(count):
        topic = f"$SYS/broker/routes/r{number}/status"
        host.wait(host.broker.retain_message(None, topic, json.dumps(status(f"r{number}")).encode()))
    assert len(overview(url(host)).statuses) == count + 2


def test_a_reload_that_failed_is_shown_until_one_succeeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.lot"
    path.write_text(SERVER_ROUTE)
    reporting = Host(configuration(path, status_seconds=60, reload_seconds=0.02))
    try:
        client = reporting.client("$SYS/broker/routes/reload")
        path.write_text("DEFINE ROUTE R WITH TYPE REST_API\n    ADD NONSENSE\n")
        failure = json.loads(client.message()[1])
        assert (failure["errors"] >= 1, failure["message"].startswith(f"{path}:")) == (True, True)
        assert main(["status", "--broker", url(reporting)]) == 0
        shown = capsys.readouterr().err
        assert shown.startswith("reload failed ")
        assert f"current routes: 2 errors in the route files, the first: {path}:1:1: error: route R has no" in shown
        path.write_text(SERVER_ROUTE)
        assert client.message() == ("$SYS/broker/routes/reload", b"")
        assert main(["status", "--broker", url(reporting)]) == 0
        assert capsys.readouterr().err == ""
    finally:
        reporting.stop()


def test_status_that_the_plugin_publishes_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with hosting(SERVER_ROUTE, status_seconds=1) as reporting:
        client = reporting.client("$SYS/broker/routes/+/status")
        client.message()
        assert main(["status", "--broker", url(reporting), "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["name"], one["type"], one["health"]) == ("Intake", "REST_API", "Green")


def test_a_route_that_refuses_its_callers_says_so_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    guarded = SERVER_ROUTE.replace("WITH SERVER_PORT", 'WITH SERVER_TOKEN "a-long-token"\n        WITH SERVER_PORT')
    with hosting(guarded, status_seconds=0.1) as reporting, Raw(reporting.http_port) as raw:
        assert raw.ask(post("/webhook", b"x", "Authorization: Bearer wrong")).status == 401
        client = reporting.client("$SYS/broker/routes/Intake/status")
        while json.loads(client.message()[1])["health"] != "Yellow":
            pass
        assert main(["status", "--broker", url(reporting)]) == 0
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "Intake: callers refused: 1 of the last 1 requests, the last one with 401 unauthorized" in shown
    assert shown[1].split()[:2] == ["Intake", "Yellow"]


def test_it_ends_although_statuses_are_published_without_a_pause(capsys: pytest.CaptureFixture[str]) -> None:
    with hosting(SERVER_ROUTE, status_seconds=0.01) as reporting:
        reporting.client("$SYS/broker/routes/+/status").messages(3)
        assert main(["status", "--broker", url(reporting), "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["Intake"]


def test_table_follows_changes_and_removals(host: Host, retained: dict[str, bytes]) -> None:
    async def names_seen() -> list[list[str]]:
        seen: list[list[str]] = []
        async with contextlib.aclosing(watch_broker(broker_address(url(host)), None)) as overviews:
            async for overview in overviews:
                seen.append(sorted(one["name"] for one in overview.statuses))
                topic = "$SYS/broker/routes/a/status"
                if len(seen) == 1:
                    host.wait(
                        host.broker.internal_message_broadcast("$SYS/broker/routes/new/status", b'{"name": "new"}')
                    )
                elif "new" in seen[-1] and "a" in seen[-1]:
                    host.wait(host.broker.internal_message_broadcast(topic, b""))
                elif "new" in seen[-1]:
                    break
        return seen

    seen = asyncio.run(names_seen())
    assert seen[0] == ["a", "b"]
    assert seen[-1] == ["b", "new"]


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


@contextlib.contextmanager
def ignored(number: signal.Signals) -> Iterator[None]:
    """Ignore a signal, also in the processes that are started meanwhile."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_terminal_shows_the_table_in_place_until_interrupted(
    host: Host, retained: dict[str, bytes], number: signal.Signals
) -> None:
    terminal = Terminal("status", "--broker", url(host, "u:geheim@"))
    terminal.expect(r"\x1b\[Hmqtt://127\.0\.0\.1:\d+  \d\d:\d\d:\d\d  2 routes: 2 Green  \(Ctrl-C ends\) *\r?\n")
    terminal.expect(r"a +\x1b\[32mGreen *\x1b\[0m")
    host.wait(host.broker.internal_message_broadcast("$SYS/broker/routes/a/status", b'{"name": "a", "health": "Red"}'))
    terminal.expect(r"\x1b\[H.*2 routes: 1 Red, 1 Green")
    terminal.expect(r"a +\x1b\[31mRed *\x1b\[0m")
    terminal.process.send_signal(number)
    assert terminal.end() == 130
    assert "geheim" not in terminal.text
    assert {"\x1b[?1049h", "\x1b[?25l"} <= set(re.findall(r"\x1b\[\?\d+[hl]", terminal.text.partition("mqtt://")[0]))
    before, back, last = terminal.text.rpartition("\x1b[?1049l")
    assert back
    assert "\x1b[?25h" in terminal.text
    plain = re.sub(r"\x1b\[[\d;?]*\w", "", last)
    below = r"b: last error, well again now: timeout: .* ago\)\r\n"
    assert re.fullmatch(rf"mqtt://.*\r\nROUTE .*\r\na .*\r\nb .*\r\n{below}", plain, re.DOTALL)
    assert all(len(re.sub(r"\x1b\[[\d;?]*\w", "", line)) <= 90 for line in re.split(r"\r\n|\x1b\[H", before))


def test_terminate_ends_the_table_where_interrupts_are_ignored(host: Host, retained: dict[str, bytes]) -> None:
    with ignored(signal.SIGINT):  # as a shell starts the background jobs of a script
        terminal = Terminal("status", "--broker", url(host), interpreter=True)
    terminal.expect(r"2 routes: 2 Green")
    terminal.process.send_signal(signal.SIGINT)
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.end() == 130
    assert terminal.text.count("\x1b[?1049h") == terminal.text.count("\x1b[?1049l") == 1


def test_terminal_without_colours_has_none(host: Host, retained: dict[str, bytes]) -> None:
    terminal = Terminal("status", "--broker", url(host), NO_COLOR="1")
    terminal.expect(r"\na +Green ")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    assert "\x1b[32m" not in terminal.text


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
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130


def test_terminal_of_80_columns_shows_every_number_and_the_whole_name(host: Host, retained: dict[str, bytes]) -> None:
    name = "Intake_of_orders_from_Porto_and_its_two_warehouses.v2"
    payload = json.dumps(status(name, latency_ms={"p50": 324.54, "p99": 12345.67})).encode()
    host.wait(host.broker.retain_message(None, f"$SYS/broker/routes/{name}/status", payload))
    terminal = Terminal("status", "--broker", url(host), columns=80, NO_COLOR="1")
    terminal.expect("counters up to ")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    last = re.sub(r"\x1b\[[\d;?]*\w", "", terminal.text.rpartition("\x1b[?1049l")[2]).splitlines()
    table = [line for line in last if not line.startswith(("mqtt:", "counters", "a:", "b:", f"{name}:", "("))]
    assert all(len(line) <= 80 for line in table)
    words = " ".join(table).split()
    assert {"324.5", "12345.7", "1234", "1200", "30", "7", "4", "5", "16", "Green", "connected"} <= set(words)
    assert name in "".join(line.partition(" ")[0] for line in table)
    assert any(line.startswith("counters up to ") for line in last)


def test_lines_beyond_the_height_of_the_terminal_are_counted(host: Host, retained: dict[str, bytes]) -> None:
    for number in range(60):
        host.wait(host.broker.retain_message(None, f"$SYS/broker/routes/r{number}/status", b'{"name": "r%d"}' % number))
    terminal = Terminal("status", "--broker", url(host), NO_COLOR="1")
    terminal.expect(r"\r\n\.\.\. and \d+ more lines ")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    first, _, last = terminal.text.rpartition("\x1b[?1049l")
    assert ("r59 " in first, "r59 " in last) == (False, True)


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


def test_credentials_of_the_url_are_used_decoded() -> None:
    with hosting(SERVER_ROUTE, {f"{HERE}.OneUser": {}}) as gated:
        assert overview(url(gated, "mon%3Aitor:s%2Fcr%40t@")).statuses == []


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
        overview(url(strict))


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
def test_address_that_is_none_is_refused_without_repeating_it(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"^--broker is not the address of a broker; write mqtt://\[USER"):
        broker_address(given)
    assert main(["status", "--broker", given]) == 2
    assert "geheim" not in capsys.readouterr().err


# The figures of now, from the admin port.


@pytest.fixture
def bridge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """Run a bridge that never publishes a status, and name its admin port in the environment."""
    with hosting(SERVER_ROUTE, status_seconds=0, admin_port=0, admin_token=TOKEN) as running:
        monkeypatch.setenv("REST_BRIDGE_ADMIN", f"http://127.0.0.1:{running.admin_port}")
        monkeypatch.setenv("REST_BRIDGE_ADMIN_TOKEN", TOKEN)
        yield running


def test_the_admin_port_has_the_figures_of_now(bridge: Host, capsys: pytest.CaptureFixture[str]) -> None:
    for count in (1, 2):
        with Raw(bridge.http_port) as raw:
            assert raw.ask(post("/webhook", b"x")).status == 200
        assert main(["status", "--json"]) == 0
        (one,) = json.loads(capsys.readouterr().out)
        assert (one["name"], one["messages"]["succeeded"]) == ("Intake", count)
    assert main(["status"]) == 0
    title, row, *_, age = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"as of \d\d:\d\d:\d\d", age)
    assert (title.split()[:5], row.split()[:5]) == (
        ["ROUTE", "HEALTH", "CONNECTION", "TOTAL", "OK"],
        ["Intake", "Green", "connected", "2", "2"],
    )
    assert main(["status", "--broker", url(bridge), "--json"]) == 0  # which wins over the environment
    assert capsys.readouterr().out == "[]\n"


def test_what_keeps_the_bridge_from_being_ready_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.lot"
    path.write_text(SERVER_ROUTE)
    reporting = Host(configuration(path, admin_port=0, reload_seconds=0.02))
    try:
        path.write_text("DEFINE ROUTE R WITH TYPE REST_API\n    ADD NONSENSE\n")
        eventually(lambda: admin_of(reporting).get("/readyz").status == 503)
        assert main(["status", "--admin", f"http://127.0.0.1:{reporting.admin_port}"]) == 0
        printed = capsys.readouterr()
        assert printed.err.startswith("not ready: the last reload failed, the routes before it are in use: ")
        assert printed.out.splitlines()[1].startswith("Intake ")
    finally:
        reporting.stop()


def test_terminal_follows_the_admin_port(bridge: Host) -> None:
    terminal = Terminal("status", NO_COLOR="1")
    terminal.expect(r"http://127\.0\.0\.1:\d+  \d\d:\d\d:\d\d  1 route: 1 Green  \(Ctrl-C ends\)")
    with Raw(bridge.http_port) as raw:
        assert raw.ask(post("/webhook", b"x")).status == 200
    terminal.expect(r"Intake +Green +connected +1 +1 ")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130


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
def test_nothing_is_asked_without_one_address(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", *arguments]) == 2
    assert said in capsys.readouterr().err


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
