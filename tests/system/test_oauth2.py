"""OAuth2 client credentials in a running bridge: one token for a route, however many calls, and where it is shown."""

import json
import threading
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs

import pytest

from amqtt_rest_bridge.__main__ import main
from tests.support.doors import DOORS, Hosting
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import Answer, Recorder, recording
from tests.support.http_target import AUTHORITY, ConnectProxy, Seen, Target, answering, reply, server_tls
from tests.support.waiting import SECONDS, eventually

SECRET = "cl1ent-s3cret"


class Api:
    """An API and the server of its tokens, in one; `accepts` are the tokens that it takes, `life` their seconds."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.url = recorder.url
        self.issued: list[str] = []
        self.asked: list[Seen] = []
        self.refused: set[str] = set()
        self.life: object = 3600
        self.issue: Callable[[Seen], Answer | None] = lambda _: None
        recorder.answer = self._answer

    def _answer(self, seen: Seen) -> Answer:
        if seen.path == "/token":
            self.asked.append(seen)
            if (other := self.issue(seen)) is not None:
                return other
            self.issued.append(f"t0ken-{len(self.issued) + 1}")
            answer = {"access_token": self.issued[-1], "token_type": "Bearer", "expires_in": self.life}
            return 200, json.dumps(answer).encode()
        token = (seen.headers["Authorization"] or "").removeprefix("Bearer ")
        return (200, token.encode()) if token in self.issued and token not in self.refused else (401, b"who?")

    def route(self, config: str = "") -> str:
        return f"""
            DEFINE ROUTE R WITH TYPE REST_API
                ADD REST_API_CONFIG WITH BASE_ADDRESS "{self.url}" WITH ENABLE_CLIENT "true"
                    WITH OAUTH2_TOKEN_URL "{self.url}/token" WITH OAUTH2_CLIENT_ID "me & you"
                    WITH OAUTH2_CLIENT_SECRET "{SECRET}" WITH OAUTH2_SCOPE "read write" WITH OAUTH2_AUDIENCE "api"
                    {config}
                ADD EVENT A WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/a" WITH DESTINATION_TOPIC "out"
                ADD EVENT B WITH SOURCE_TOPIC "in" WITH METHOD "GET" WITH ENDPOINT "/b" WITH DESTINATION_TOPIC "out"
        """


@pytest.fixture
def api() -> Iterator[Api]:
    with recording() as recorder:
        yield Api(recorder)


@pytest.mark.parametrize("hosting", DOORS)
def test_one_token_serves_all_events_and_workers_of_a_route(api: Api, hosting: Hosting) -> None:
    with hosting(api.route(), workers=8) as host:
        client = host.client("out")
        for _ in range(20):
            client.publish("in", b"")
        assert client.messages(40) == [("out", b"t0ken-1")] * 40
    (asked,) = api.asked
    assert asked.headers["Authorization"] == "Basic bWUrJTI2K3lvdTpjbDFlbnQtczNjcmV0"
    form = {name: values[0] for name, values in parse_qs(asked.body.decode()).items()}
    assert form == {"grant_type": "client_credentials", "scope": "read write", "audience": "api"}


@pytest.mark.parametrize("is_refused", [False, True], ids=["one token sent", "two after a 401"])
def test_a_failure_masks_the_tokens_it_was_sent_with_however_many_were_issued_meanwhile(
    api: Api, is_refused: bool
) -> None:
    """The server echoes Authorization in its 500: one that took long enough for six other tokens to be issued."""
    answer_of_api, released, sent = api.recorder.answer, threading.Event(), list[str]()

    def answer(seen: Seen) -> Answer:
        if seen.path != "/a" or seen.body != b"held":
            return answer_of_api(seen)
        sent.append(seen.values("authorization")[0])
        if is_refused and len(sent) == 1:
            return 401, b""
        released.wait(SECONDS)
        return 500, "\n".join(sent).encode()

    api.recorder.answer = answer
    api.life = 0  # each request has a token of its own
    text = api.route().replace('WITH ENDPOINT "/a"', 'WITH ENDPOINT "/a" WITH BODY "{payload}"')
    with hosting(text) as host:
        client = host.client("out")
        client.publish("in", b"held")
        eventually(lambda: len(sent) == 1 + is_refused)
        for _ in range(3):
            client.publish("in", b"")
        client.messages(7)
        released.set()
        body = json.loads(client.message()[1])["body"]
    assert body == "\n".join(["Bearer ***"] * len(sent))


def test_the_grant_goes_through_the_routes_tls_settings_and_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = reply(b'{"access_token": "t", "token_type": "bearer"}', "200 OK")
    with Target(answering(answer), tls=server_tls()) as target, ConnectProxy(target.port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        text = f"""DEFINE ROUTE R WITH TYPE REST_API
            ADD REST_API_CONFIG WITH BASE_ADDRESS "https://localhost.example:1" WITH ENABLE_CLIENT "true"
                WITH CA_FILE "{AUTHORITY}" WITH IGNORE_CERT_ERRORS "true"
                WITH OAUTH2_TOKEN_URL "https://server.example/token" WITH OAUTH2_CLIENT_ID "i"
                WITH OAUTH2_CLIENT_SECRET "s"
            ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "GET" WITH ENDPOINT "/x" WITH DESTINATION_TOPIC "out"
        """
        with hosting(text) as host:
            client = host.client("out")
            client.publish("in", b"")
            assert client.message()[1].startswith(b'{"access_token"')
        assert proxy.requests[0].line.startswith("CONNECT server.example:443")
        assert [seen.line.split()[:2] for seen in target.requests] == [["POST", "/token"], ["GET", "/x"]]
        assert target.requests[1].values("Authorization") == ["Bearer t"]


def test_try_masks_the_token_and_the_clients_secret(
    api: Api, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"{tmp_path}/r.lot"
    with open(path, "w") as file:  # noqa: PTH123
        file.write(api.route())
    assert main(["try", path, "--topic", "in"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("Authorization: Bearer ***") == 2
    assert not api.asked
    assert main(["try", path, "--topic", "in", "--send"]) == 0
    sent = capsys.readouterr().out
    assert "t0ken" not in sent
    assert SECRET not in shown + sent
