"""Wrong credentials: many from one address are answered late, right ones never, and no caller waits for another."""

import asyncio
import base64
import logging
import socket
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from amqtt_rest_bridge.engine.server.credentials import (
    DELAY_SECONDS,
    FREE_GUESSES,
    MINUTE_SECONDS,
    MOST_LATE,
    WrongCredentials,
)
from amqtt_rest_bridge.engine.server.signatures import sign
from amqtt_rest_bridge.http.exchange import Caller, Refusal
from amqtt_rest_bridge.lot.model import Signature, SignatureScheme
from tests.support.admin_client import TOKEN, admin_of
from tests.support.answering import Answering, VirtualClock, port, result_of
from tests.support.embedded_broker import hosting
from tests.support.http_ports import Raw, Served, error_code_of, get, hook_route, post, served
from tests.support.server_mode import error_code, event, route
from tests.support.waiting import eventually

BASIC = {"username": "bob", "password": "right"}
ATTACKER = "203.0.113.7"
WRONG = "Authorization: Bearer wrong"
RIGHT = "Authorization: Bearer a-long-token"
SIGNED = Signature("whsec_c2VjcmV0")


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


class Guesses:
    """Guesses of callers, whose time passes when the test says so."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.wrong_credentials = WrongCredentials(self.clock)
        self.loop = asyncio.new_event_loop()

    def guess(self, address: str = ATTACKER, caller: Caller | None = None) -> "asyncio.Task[Refusal | None]":
        """Make a guess; its answer is not late where the task is done."""
        task = self.loop.create_task(self.wrong_credentials.delay(address, 8080, caller or Caller()))
        self.advance(0)
        return task

    def is_late(self, address: str = ATTACKER) -> bool:
        return not self.guess(address).done()

    def use_up(self, address: str = ATTACKER) -> None:
        """Make as many guesses as are answered at once."""
        assert not any(self.is_late(address) for _ in range(FREE_GUESSES))

    def advance(self, seconds: float) -> None:
        async def advanced() -> None:
            self.clock.advance(seconds)
            for _ in range(3):
                await asyncio.sleep(0)

        self.loop.run_until_complete(advanced())


@pytest.fixture
def guesses() -> Iterator[Guesses]:
    made = Guesses()
    yield made
    for task in asyncio.all_tasks(made.loop):
        task.cancel()
    made.advance(0)
    made.loop.close()


def test_the_eleventh_guess_within_a_minute_is_answered_after_a_second(guesses: Guesses) -> None:
    guesses.use_up()
    late = guesses.guess()
    guesses.advance(0.75)
    assert not late.done()
    guesses.advance(0.25)
    assert late.result() is None


def test_a_minute_after_the_first_of_them_a_guess_is_answered_at_once(guesses: Guesses) -> None:
    for _ in range(FREE_GUESSES):
        assert not guesses.is_late()
        guesses.advance(1)
    guesses.advance(MINUTE_SECONDS - FREE_GUESSES - 0.1)
    assert guesses.is_late()
    guesses.advance(1.6)  # two of the first ten are gone, one came since
    assert not guesses.is_late()
    assert guesses.is_late()


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        pytest.param("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True, id="one /64"),
        pytest.param("2001:db8:1:2::1", "2001:db8:1:3::1", False, id="two /64"),
        pytest.param("fe80::1%eth0", "fe80::2%eth1", True, id="with an interface"),
        pytest.param("::ffff:203.0.113.7", "203.0.113.7", True, id="IPv4 over an IPv6 socket"),
        pytest.param("::ffff:203.0.113.7", "::ffff:203.0.113.8", False, id="two IPv4 over an IPv6 socket"),
        pytest.param("203.0.113.7", "203.0.113.8", False, id="two IPv4"),
        pytest.param("", "", True, id="none"),
    ],
)
def test_addresses_are_counted_apart_and_those_of_an_ipv6_network_together(
    guesses: Guesses, first: str, second: str, is_same: bool
) -> None:
    guesses.use_up(first)
    assert guesses.is_late(second) is is_same


class Left(Caller):
    """A caller that has closed its side."""

    has_left = True


def test_a_caller_that_closes_its_side_frees_its_place_and_is_answered_no_sooner(guesses: Guesses) -> None:
    guesses.use_up()
    closed = [guesses.guess(caller=Left()) for _ in range(MOST_LATE)]
    others = [guesses.guess() for _ in range(MOST_LATE)]
    assert not any(each.done() for each in (*closed, *others))
    refusal = guesses.guess(caller=Left()).result()  # more than that do not wait without a place
    assert refusal is not None
    guesses.advance(DELAY_SECONDS)
    assert [each.result() for each in (*closed, *others)] == [None] * 2 * MOST_LATE


@pytest.mark.parametrize("count", [6_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_many_thousand_addresses_take_bounded_memory_and_forget_none(guesses: Guesses, count: int) -> None:
    async def guess_from_each() -> None:
        for number in range(count):
            address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
            task = asyncio.create_task(guesses.wrong_credentials.delay(address, 8080, Caller()))
            await asyncio.sleep(0)
            task.cancel()

    guesses.use_up()
    tracemalloc.start()
    try:
        guesses.loop.run_until_complete(guess_from_each())
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 8 << 20
    assert guesses.is_late()
    assert guesses.is_late("198.51.100.1")  # counts with all for which there was no room
    guesses.advance(MINUTE_SECONDS)
    assert not guesses.is_late("198.51.100.1")
    assert not guesses.is_late()


def test_the_log_names_address_and_port_once_a_minute(guesses: Guesses, caplog: pytest.LogCaptureFixture) -> None:
    guesses.use_up()
    assert caplog.messages == []
    for _ in range(100):
        guesses.guess()
    told = "port 8080: more than 10 wrong credentials from 203.0.113.7 within a minute; further ones are answered late"
    assert caplog.messages == [told]
    assert caplog.records[0].levelno == logging.WARNING
    guesses.advance(59)
    guesses.guess()
    assert caplog.messages == [told]
    guesses.advance(1)
    for _ in range(FREE_GUESSES):
        guesses.guess()
    assert caplog.messages == [told, f"{told} (and 100 more like it)"]


TOKEN_HEADER = {"server_token": ("t",), "server_token_header": "X-API-Key"}


@pytest.mark.parametrize(
    ("settings", "name", "wrong", "right"),
    [
        pytest.param(BASIC, "Authorization", basic("bob:wrong"), basic("bob:right"), id="Basic"),
        pytest.param({"server_token": ("t",)}, "Authorization", "Bearer wrong", "Bearer t", id="Bearer"),
        pytest.param(TOKEN_HEADER, "X_API_Key", "wrong", "t", id="a header"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_wrong_credentials_of_a_route_are_late_and_right_ones_never(
    settings: dict[str, object], name: str, wrong: str, right: str, method: str
) -> None:
    hooks = port(event("GET", "/last", None, source="last"), **settings)
    hooks.broker.changed("last", b"21.5")
    answers = [hooks.ask(method, "/last", **{name: wrong}) for _ in range(FREE_GUESSES)]
    assert hooks.waited == []
    answers.append(hooks.ask(method, "/last", **{name: wrong}))
    assert {(one.status_code, one.content) for one in answers} == {(401, answers[0].content)}
    assert hooks.ask(method, "/last", **{name: right}).status_code == 200
    assert hooks.ask("OPTIONS", "/last").status_code == 204
    assert hooks.waited == [DELAY_SECONDS]


@pytest.mark.parametrize("scheme", list(SignatureScheme))
def test_wrong_signatures_are_late_and_right_ones_never(scheme: SignatureScheme) -> None:
    signature = Signature(SIGNED.secret, scheme=scheme)
    hooks = port(event(signature=signature))
    valid = {name.replace("-", "_"): value for name, value in sign(signature, b"body", 1_769_860_800).items()}
    for _ in range(FREE_GUESSES + 1):
        assert error_code(hooks.ask("POST", "/hook", "another body", **valid)) == "invalid_signature"
    assert hooks.ask("POST", "/hook", "body", **valid).status_code == 200
    assert hooks.waited == [DELAY_SECONDS]


@pytest.mark.parametrize(
    ("hooks", "headers"),
    [
        pytest.param(port(event(), **BASIC), {}, id="no password"),
        pytest.param(port(event(), **BASIC), {"Authorization": ""}, id="an empty header"),
        pytest.param(port(event(signature=SIGNED)), {}, id="no signature"),
        pytest.param(port(event(), enable_cors=True, **BASIC), {"Origin": "https://a.example"}, id="an origin"),
    ],
)
def test_requests_without_a_credential_are_never_late(hooks: Answering, headers: dict[str, str]) -> None:
    for _ in range(3 * FREE_GUESSES):
        assert hooks.ask("POST", "/hook", "1", **headers).status_code in (401, 403)
    assert hooks.waited == []


def test_the_endpoints_of_all_ports_count_together_and_a_reload_forgets_nothing() -> None:
    hooks = port(event(), **BASIC)
    for _ in range(FREE_GUESSES):
        hooks.ask("POST", "/hook", Authorization=basic("a:b"))
    hooks.app = hooks.use(route(event(endpoint="/other"), server_port=9090, **BASIC), port=9090)
    hooks.ask("POST", "/other", Authorization=basic("a:b"))
    assert hooks.waited == [DELAY_SECONDS]
    assert hooks.ask("POST", "/other", "1", Authorization=basic("bob:right")).status_code == 200


def test_a_guess_that_is_refused_for_want_of_a_place_counts_as_a_wrong_credential() -> None:
    hooks = port(event(), **BASIC)
    for _ in range(FREE_GUESSES + MOST_LATE + 1):
        last = hooks.start(hooks.begin("POST", "/hook", Authorization=basic("a:b")))
    assert error_code(result_of(last.result())) == "overloaded"
    assert hooks.broker.counted[-1] == ("Hooks", "unauthorized")
    assert hooks.broker.lines[-1] == "answered POST /hook with 503 Service Unavailable"


@pytest.fixture
def guarded() -> Iterator[Served]:
    """A port with credentials, whose late answers are due when the test says so, and open routes beside them."""
    with served(
        hook_route(server_token=("a-long-token",)),
        route(event(endpoint="/open"), event(endpoint="/slow", reply="answers/{request_id}", name="Slow"), name="Open"),
        clock=VirtualClock(),
    ) as port:
        for _ in range(FREE_GUESSES):
            assert port.ask(post("/hook", b"x", WRONG)).status == 401
        yield port


def guessing(port: Served, stack: ExitStack, count: int) -> list[Raw]:
    """Open connections with a guess each, and wait until their answers wait."""
    before = port.in_turn
    connections = [stack.enter_context(port.connect()).send(post("/hook", b"x", WRONG)) for _ in range(count)]
    eventually(lambda: port.in_turn == before + count)
    return connections


def test_sixty_four_guesses_wait_and_no_other_caller_does(guarded: Served) -> None:
    with ExitStack() as stack:
        waiting = guessing(guarded, stack, MOST_LATE)
        refusal = guarded.ask(post("/hook", b"x", WRONG))
        assert (refusal.status, error_code_of(refusal), refusal.headers["Retry-After"]) == (503, "overloaded", "1")
        assert guarded.ask(post("/hook", b"right", RIGHT)).status == 200
        assert guarded.ask(post("/open", b"open")).status == 200
        slow = stack.enter_context(guarded.connect()).send(post("/slow"))
        guarded.waiting().arrive(b"reply")
        assert slow.answer().body == b"reply"
        assert guarded.in_turn == MOST_LATE
        guarded.advance(DELAY_SECONDS)
        assert {raw.answer().status for raw in waiting} == {401}
        assert guarded.in_turn == 0


def test_one_connection_guesses_once_a_second_and_a_right_credential_behind_it_is_answered_at_once(
    guarded: Served,
) -> None:
    with guarded.connect() as raw:
        raw.send(post("/hook", b"1", WRONG) * 3 + post("/hook", b"2", RIGHT))
        for _ in range(3):
            eventually(lambda: guarded.in_turn == 1)
            assert guarded.bodies == []
            guarded.advance(DELAY_SECONDS)
            assert raw.answer().status == 401
        assert raw.answer().status == 200
        assert raw.ask(post("/hook", b"3", RIGHT)).status == 200
    assert guarded.bodies == [b"2", b"3"]


@pytest.mark.parametrize("how", ["closed", "reset", "half closed"])
def test_a_connection_that_closes_frees_its_place(guarded: Served, how: str) -> None:
    with ExitStack() as stack:
        for raw in guessing(guarded, stack, MOST_LATE):
            if how == "half closed":
                raw.sock.shutdown(socket.SHUT_WR)
                continue
            if how == "reset":
                raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.__exit__()
        taken: list[Raw] = []

        def waits() -> bool:
            raw = stack.enter_context(guarded.connect())
            raw.send(post("/hook", b"x", WRONG))
            taken.append(raw)
            eventually(lambda: guarded.in_turn > MOST_LATE or raw.is_readable())
            return guarded.in_turn > MOST_LATE

        eventually(waits)
        guarded.advance(DELAY_SECONDS)
        assert taken[-1].answer().status == 401
        eventually(lambda: guarded.in_turn == 0)


def test_an_answer_that_waits_holds_no_body() -> None:
    request = post("/hook", bytes(200_000), "X-Hub-Signature-256: sha256=00")
    with (
        served(route(event(signature=SIGNED)), max_body_bytes=262_144, clock=VirtualClock()) as port,
        ExitStack() as stack,
    ):
        for _ in range(FREE_GUESSES):
            assert port.ask(request).status == 401
        tracemalloc.start()
        try:
            for _ in range(MOST_LATE):
                stack.enter_context(port.connect()).send(request)
            eventually(lambda: port.in_turn == MOST_LATE)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert held < MOST_LATE * 50_000


def test_the_address_of_the_peer_counts_whatever_its_headers_say(guarded: Served) -> None:
    with ExitStack() as stack:
        (waiting,) = guessing(guarded, stack, 1)  # 127.0.0.1 has used up its guesses
        for address in ("127.0.0.2", "127.9.9.9"):
            with socket.create_connection(("127.0.0.1", guarded.port), source_address=(address, 0)) as sock:
                sock.sendall(post("/hook", b"x", WRONG, "X-Forwarded-For: 127.0.0.1", "Forwarded: for=127.0.0.1"))
                assert sock.recv(1000).startswith(b"HTTP/1.1 401 ")
        assert guarded.in_turn == 1
        guarded.advance(DELAY_SECONDS)
        assert waiting.answer().status == 401


ROUTE = """DEFINE ROUTE Guarded WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT "0" WITH SERVER_TOKEN "a-long-token"
    ADD EVENT Received WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "received"
"""


def test_tokens_of_the_admin_port_and_of_routes_count_together_in_a_bridge_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with hosting(ROUTE, admin_port=0, admin_token=TOKEN, processes=1) as host:
        admin = admin_of(host)
        for _ in range(3 * FREE_GUESSES):
            assert admin.get("/api/routes").status == 401  # a browser that asks for the password
        assert not [line for line in caplog.messages if "wrong credentials" in line]
        for _ in range(FREE_GUESSES // 2):
            assert admin.get("/api/routes", Authorization="Bearer wrong").status == 401
            with Raw(host.http_port) as raw:
                assert raw.ask(post("/hook", b"x", WRONG)).status == 401
        assert admin.get("/api/routes", Authorization="Bearer wrong").status == 401
        told = f"port {admin.port}: more than 10 wrong credentials from 127.0.0.1 within a minute; further ones are"
        eventually(lambda: [line for line in caplog.messages if line.startswith(told)])
        assert admin.get("/api/routes", Authorization=f"Bearer {TOKEN}").status == 200
        assert admin.get("/api/routes", Authorization=basic(f"any:{TOKEN}")).status == 200
        with Raw(host.http_port) as raw:
            assert raw.ask(post("/hook", b"x", RIGHT)).status == 200


def test_a_full_house_of_guesses_leaves_the_admin_port_to_others() -> None:
    with hosting(ROUTE, admin_port=0, admin_token=TOKEN, processes=0) as host, ExitStack() as stack:
        admin = admin_of(host)
        for _ in range(FREE_GUESSES):
            admin.get("/api/routes", Authorization="Bearer wrong")
        for _ in range(MOST_LATE):
            stack.enter_context(Raw(admin.port)).send(get("/api/routes", WRONG))
        assert admin.get("/api/routes", Authorization=f"Bearer {TOKEN}").status == 200
