"""Digest against lighttpd, as Debian has it, and against servers that do what it does not."""

import contextlib
import hashlib
import http.client
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqtt_rest_bridge.http.client import client_for
from amqtt_rest_bridge.lot.model import AuthScheme, HttpRequest, Method, RestApiConfig
from tests.http.clients import Client
from tests.http.servers import LIGHTTPD, serving
from tests.support.http_target import Peer, Target, reply

CHALLENGE = 'WWW-Authenticate: Digest realm="{realm}", qop="auth", algorithm=SHA-256, nonce="{nonce}"{more}'


@contextlib.contextmanager
def client_of(port: int, password: str = "word") -> Iterator[Client]:
    base = f"http://127.0.0.1:{port}"
    config = RestApiConfig(base, True, username="me", password=password, auth_scheme=AuthScheme.DIGEST)
    client = Client(client_for(config, base, max_response_bytes=100_000, environment={}), base)
    try:
        yield client
    finally:
        client.close()


def send(port: int, *requests: tuple[Method, str], password: str = "word") -> list[int]:
    """Return the statuses of requests that one client sends."""
    with client_of(port, password) as client:
        return [client.ask(method, path).status for method, path in requests]


class Server:
    """A server that accepts a nonce for `uses` requests, with each the next count only, and redirects /from to /to."""

    def __init__(self, uses: int = 1000, *, says_stale: bool = True) -> None:
        self.uses, self.says_stale = uses, says_stale
        self.counts: dict[str, int] = {}  # of requests, by nonce
        self.statuses: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, peer: Peer) -> None:
        while (seen := peer.request()) is not None:
            sent = seen.headers["Authorization"] or ""
            status, head = 200, list[str]()
            with self._lock:
                if not self._accepts(sent, seen.method, seen.path):
                    self.counts[nonce := f"n{len(self.counts)}"] = 0
                    stale = ", stale=true" if self.says_stale and sent else ""
                    status, head = 401, [CHALLENGE.format(realm="all", nonce=nonce, more=stale)]
                elif seen.path == "/from":
                    status, head = 302, ["Location: /to"]
                self.statuses.append(status)
            time.sleep(0.002)  # so that requests overlap
            peer.send(reply(b"", f"{status} Status", *head))

    def _accepts(self, sent: str, method: str, path: str) -> bool:
        def sha(*parts: str) -> str:
            return hashlib.sha256(":".join(parts).encode()).hexdigest()

        fields = {name: quoted or bare for name, quoted, bare in re.findall(r'(\w+)=(?:"([^"]*)"|([^ ,]+))', sent)}
        nonce = fields.get("nonce", "")
        self.counts[nonce] = self.counts.get(nonce, self.uses) + 1
        count = f"{self.counts[nonce]:08x}"
        digest = sha("me", "all", "word"), nonce, count, fields.get("cnonce", ""), "auth", sha(method, path)
        expected = {"nc": count, "uri": path, "response": sha(*digest)}
        return self.counts[nonce] <= self.uses and expected.items() <= fields.items()


GET, POST = Method.GET, Method.POST


def test_one_more_round_trip_a_nonce() -> None:
    server = Server()
    with Target(server) as target:
        assert send(target.port, (GET, "/a"), (POST, "/b?c=1"), (GET, "/a")) == [200] * 3
    assert server.statuses == [401, 200, 200, 200]


@pytest.mark.parametrize("says_stale", [True, False])
def test_a_nonce_that_is_used_up_is_replaced_whether_the_server_calls_it_stale_or_not(says_stale: bool) -> None:
    server = Server(uses=2, says_stale=says_stale)
    with Target(server) as target:
        assert send(target.port, *[(POST, "/")] * 4) == [200] * 4
    assert server.statuses == [401, 200, 200, 401, 200, 200]


@pytest.mark.parametrize("says_stale", [True, False])
def test_a_nonce_that_is_good_once_is_that_of_the_request_it_was_given_to(says_stale: bool) -> None:
    with Target(Server(1, says_stale=says_stale)) as target, client_of(target.port) as client:
        responses = client.send_all([HttpRequest(GET, f"{client.base}/")] * 80)
    assert [response.status for response in responses] == [200] * 80


def test_the_target_of_a_redirect_gets_a_digest_of_its_own() -> None:
    server = Server()
    with Target(server) as target:
        assert send(target.port, (GET, "/from")) == [200]
    assert server.statuses == [401, 302, 200]


def test_a_wrong_password_is_the_servers_401_after_one_repetition() -> None:
    server = Server(says_stale=False)
    with Target(server) as target:
        assert send(target.port, (GET, "/"), password="wrong") == [401]
    assert server.statuses == [401, 401]


def test_a_turn_is_awaited_before_the_repetition_too_so_that_both_count_for_the_rate_limit() -> None:
    turns: list[None] = []

    async def turn() -> None:
        turns.append(None)

    with Target(Server()) as target, client_of(target.port) as client:
        assert client.ask(turn=turn).status == 200
    assert len(turns) == 2


def test_an_authorization_of_the_event_is_sent_as_it_is() -> None:
    server = Server()
    with Target(server) as target, client_of(target.port) as client:
        assert client.ask(headers=(("authorization", "Bearer x"),)).status == 401
    assert server.statuses == [401]


CONFIGURATION = """
server.document-root = "{folder}"
server.port = {port}
server.bind = "127.0.0.1"
server.modules = ("mod_auth", "mod_authn_file")
auth.backend = "plain"
auth.backend.plain.userfile = "{folder}/users"
auth.require = (
    "/md5" => ("method" => "digest", "algorithm" => "MD5", "realm" => "old", "require" => "valid-user"),
    "/" => ("method" => "digest", "algorithm" => "SHA-256", "realm" => "new", "require" => "valid-user"),
)
"""


@pytest.mark.skipif(LIGHTTPD is None, reason="needs lighttpd")
@pytest.mark.parametrize("path", ["/sha", "/md5"])
def test_a_nonce_that_lighttpd_calls_stale_is_replaced_with_one_more_request(tmp_path: Path, path: str) -> None:
    challenges = list[str | None]()
    (tmp_path / path[1:]).write_text("a file")

    def older(peer: Peer) -> None:
        """Pass on requests and answers; the first nonce begins with another time, which is all that it has to say."""
        while (seen := peer.request()) is not None:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
                sent = seen.headers["Authorization"]
                connection.request("GET", path, headers={"Authorization": sent} if sent else {})
                answer = connection.getresponse()
                given = answer.headers["WWW-Authenticate"]
                challenges.append(given)
                if len(challenges) == 1:
                    given = re.sub('nonce="[0-9a-f]{2}', 'nonce="50', given)
                heads = [] if given is None else [f"WWW-Authenticate: {given}"]
                peer.send(reply(answer.read(), f"{answer.status} {answer.reason}", *heads))

    (tmp_path / "users").write_text("me:word\n")
    with serving(tmp_path, CONFIGURATION, LIGHTTPD, "-D", "-f", "{file}") as port, Target(older) as target:
        assert send(target.port, (GET, path), (GET, path)) == [200, 200]
        assert send(port, (GET, path), password="wrong") == [401]
    assert [one and "stale=true" in one for one in challenges] == [False, True, None, None]
