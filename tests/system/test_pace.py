"""RATE_LIMIT: each request that a call sends takes a turn, also those that libcurl sends by itself."""

import itertools
import socket
import time
from collections.abc import Callable

import pytest

from tests.support.doors import DOORS, Hosting
from tests.support.http_target import Peer, Seen, Target, reply

LIMITED = """
    DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1:{port}" WITH ENABLE_CLIENT "true" {config}
        ADD ROUTE_CONFIG WITH RATE_LIMIT "{limit}"
        ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "{method}" WITH ENDPOINT "/a"
            WITH DESTINATION_TOPIC "out" {event}
"""
OAUTH2 = """WITH OAUTH2_TOKEN_URL "http://127.0.0.1:{port}/token"
    WITH OAUTH2_CLIENT_ID "me" WITH OAUTH2_CLIENT_SECRET "s3cret" """
TOKEN = reply(b'{"access_token": "t", "token_type": "bearer"}')


Answers = Callable[[Peer, Seen, int], None]
"""Answers a request, the nth of its connection."""


def unauthorized(peer: Peer, seen: Seen, _: int) -> None:
    peer.send(TOKEN if seen.path == "/token" else reply(b"", "401 Unauthorized"))


def redirecting(peer: Peer, seen: Seen, _: int) -> None:
    further = reply(b"", "307 Temporary Redirect", f"Location: {seen.path}a")
    peer.send(reply(b"") if seen.path == "/aaaa" else further)


def busy(peer: Peer, _: Seen, __: int) -> None:
    peer.send(reply(b"", "503 Service Unavailable"))


def hanging_up(peer: Peer, _: Seen, number: int) -> None:
    if number > 1:
        peer.sock.shutdown(socket.SHUT_RDWR)
    else:
        peer.send(reply(b""))


@pytest.mark.parametrize(
    ("answer", "method", "config", "requests"),
    [
        pytest.param(unauthorized, "POST", OAUTH2, 12, id="401 with OAuth2"),
        pytest.param(redirecting, "GET", "", 24, id="redirects"),
        pytest.param(busy, "POST", "WITH RETRIES 1", 12, id="retries"),
        pytest.param(hanging_up, "PUT", "", 11, id="repeated over a new connection"),
    ],
)
@pytest.mark.parametrize("hosting", DOORS)
def test_each_request_of_a_call_takes_a_turn(
    hosting: Hosting, answer: Answers, method: str, config: str, requests: int
) -> None:
    arrived: list[float] = []

    def script(peer: Peer) -> None:
        for number in itertools.count(1):
            if (seen := peer.request()) is None:
                return
            if seen.path != "/token":
                arrived.append(time.monotonic())
            answer(peer, seen, number)

    calls, per_second = 6, 20
    with Target(script) as target:
        text = LIMITED.format(
            port=target.port, limit=f"{per_second}/s", method=method, event="", config=config.format(port=target.port)
        )
        with hosting(text, workers=1) as host:  # a second one would open a connection of its own beside a slow answer
            client = host.client("out")
            began = time.monotonic()
            for _ in range(calls):
                client.publish("in", b"1")
            client.messages(calls)
    assert len(arrived) == requests
    assert arrived[-1] - began >= (requests - 1) / per_second
