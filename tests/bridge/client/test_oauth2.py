"""OAuth2 client credentials: one token for a route, when it is fetched and renewed, and what its failures are."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from amqtt_rest_bridge.__main__ import main
from amqtt_rest_bridge.bridge.client.senders import TokenSource, sender_of
from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.http_client import Exchange, Stopwatch
from amqtt_rest_bridge.model import HttpRequest, HttpResponse, Method, RestApiConfig
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


def test_one_token_serves_all_events_and_workers_of_a_route(api: Api) -> None:
    with hosting(api.route(), workers=8) as host:
        client = host.client("out")
        for _ in range(20):
            client.publish("in", b"")
        assert client.messages(40) == [("out", b"t0ken-1")] * 40
    (asked,) = api.asked
    assert asked.headers["Authorization"] == "Basic bWUrJTI2K3lvdTpjbDFlbnQtczNjcmV0"
    form = {name: values[0] for name, values in parse_qs(asked.body.decode()).items()}
    assert form == {"grant_type": "client_credentials", "scope": "read write", "audience": "api"}


def test_a_401_renews_the_token_once_also_for_a_post(api: Api) -> None:
    with hosting(api.route()) as host:
        client = host.client("out")
        client.publish("in", b"")
        client.messages(2)
        api.refused.add("t0ken-1")
        client.publish("in", b"")
        assert client.messages(2) == [("out", b"t0ken-2")] * 2
        api.refused |= {"t0ken-2", "t0ken-3", "t0ken-4"}
        client.publish("in", b"")
        failures = [json.loads(payload) for _, payload in client.messages(2)]
    assert {(failure["error"]["code"], failure["status"]) for failure in failures} == {("http_status", 401)}
    assert len(api.asked) <= 4


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


def test_batches_share_one_token_and_a_401_renews_it_and_sends_the_whole_batch_again(api: Api, tmp_path: Path) -> None:
    text = (
        api.route().partition("ADD EVENT A")[0]
        + """ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "lossless"
        ADD EVENT A WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/a" WITH BODY "{batch}" WITH BATCH_SIZE 5
            WITH DESTINATION_TOPIC "out" """
    )
    with hosting(text, workers=8, spool=str(tmp_path / "spool")) as host:
        client, statistics = host.client("out"), host.plugin.service.statistics["R"]
        for number in range(20):
            client.publish("in", b"%d" % number)
        assert client.messages(4) == [("out", b"t0ken-1")] * 4
        assert len(api.asked) == 1
        calls = [seen for seen in api.recorder.take_all() if seen.path == "/a"]
        api.refused.add("t0ken-1")
        for number in range(20, 25):
            client.publish("in", b"%d" % number)
        assert client.message() == ("out", b"t0ken-2")
        eventually(lambda: statistics.succeeded == 25)
        assert statistics.failed == 0
    assert len(api.asked) == 2
    assert sorted(number for seen in calls for number in json.loads(seen.body)) == list(range(20))
    refused, again = (seen for seen in api.recorder.take_all() if seen.path == "/a")
    assert refused.body == again.body == b"[20,21,22,23,24]"
    assert refused.headers["Idempotency-Key"] == again.headers["Idempotency-Key"] is not None


def test_a_server_that_takes_the_credentials_in_the_form_alone_is_asked_so(api: Api) -> None:
    api.issue = lambda seen: (401, b"{}") if "client_secret" not in seen.body.decode() else None
    with hosting(api.route()) as host:
        client = host.client("out")
        client.publish("in", b"")
        assert client.messages(2) == [("out", b"t0ken-1")] * 2
    form = parse_qs(api.asked[-1].body.decode())
    assert (form["client_id"], form["client_secret"]) == (["me & you"], [SECRET])


def test_a_failure_of_the_tokens_server_is_retried_like_a_connection(api: Api) -> None:
    api.issue = lambda _: (503, b"") if len(api.asked) == 1 else None
    with hosting(api.route()) as host:
        client = host.client("out")
        client.publish("in", b"")
        assert client.messages(2) == [("out", b"t0ken-1")] * 2
        assert host.plugin.service.statistics["R"].retried >= 1


def test_refused_credentials_are_a_failure_that_is_not_retried_and_shows_no_secret(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    api.issue = lambda _: (401, json.dumps({"error": "invalid_client", "error_description": SECRET}).encode())
    with hosting(api.route()) as host:
        client = host.client("out")
        client.publish("in", b"")
        payloads = [payload for _, payload in client.messages(2)]
        assert host.plugin.service.statistics["R"].retried == 0
    for payload in payloads:
        failure = json.loads(payload)["error"]
        assert failure["code"] == "oauth2_failed"
        assert "401" in failure["message"]
        assert "(invalid_client)" in failure["message"]
        assert "OAUTH2_CLIENT_SECRET" in failure["hint"]
        assert SECRET not in payload.decode()
    assert SECRET not in caplog.text
    assert "t0ken" not in caplog.text


def test_the_grant_goes_through_the_routes_tls_settings_and_proxy() -> None:
    answer = reply(b'{"access_token": "t", "token_type": "bearer"}', "200 OK")
    with Target(answering(answer), tls=server_tls()) as target, ConnectProxy(target.port) as proxy:
        config = RestApiConfig(
            base_address="https://localhost.example:1",
            ca_file=AUTHORITY,
            oauth2_token_url="https://server.example/token",
            oauth2_client_id="i",
            oauth2_client_secret="s",
            ignore_cert_errors=True,
        )
        environment = {"HTTPS_PROXY": f"http://127.0.0.1:{proxy.port}"}
        sender = sender_of(config, max_response_bytes=1000, environment=environment)
        assert sender.send(HttpRequest(Method.GET, "https://localhost.example:1/x")).status == 200
        sender.close()
        lines = [seen.line for seen in proxy.requests]
        assert lines[0].startswith("CONNECT server.example:443")
        assert [seen.line.split()[:2] for seen in target.requests] == [["POST", "/token"], ["GET", "/x"]]
        assert target.requests[1].values("Authorization") == ["Bearer t"]


class Issuer:
    """Issues tokens by hand, at a time that the test sets."""

    def __init__(self, life: object = 100) -> None:
        self.now = 0.0
        self.life = life
        self.asked = 0
        self.gate = threading.Event()
        self.gate.set()
        self.failing = False
        config = RestApiConfig(oauth2_token_url="http://h/t", oauth2_client_id="i", oauth2_client_secret="s")
        self.source = TokenSource(config, self, 5.0, lambda: self.now)

    def send(self, request: HttpRequest, stopwatch: Stopwatch | None = None) -> HttpResponse:
        self.asked += 1
        self.gate.wait(SECONDS)
        if self.failing:
            raise CallError(FailureCode.TIMEOUT, "too slow", "Check BASE_ADDRESS.")
        answer = {"access_token": f"t{self.asked}", "token_type": "bearer"}
        body = json.dumps(answer if self.life is None else {**answer, "expires_in": self.life})
        return HttpResponse(200, "OK", (), body.encode(), 0.0)

    def exchange(self, request: HttpRequest, stopwatch: Stopwatch) -> Exchange:
        yield
        return self.send(request)

    def expire(self) -> None:
        """Keeps no connection."""

    close = expire


@pytest.mark.parametrize(("life", "renewed_at"), [(100, 90), (3600, 3570), ("600", 570), (10, 9)])
def test_a_token_is_renewed_before_it_expires(life: object, renewed_at: float) -> None:
    issuer = Issuer(life)
    assert issuer.source.token() == "t1"
    issuer.now = renewed_at - 0.5
    assert issuer.source.token() == "t1"
    issuer.now = renewed_at
    assert issuer.source.token() == "t2"


@pytest.mark.parametrize("life", [None, "soon", True, 10**400, float("nan"), "nan", "1e999"])
def test_a_token_without_a_known_life_is_kept_until_it_is_refused(life: object) -> None:
    issuer = Issuer(life)
    issuer.source.token()
    issuer.now = 1e9
    assert issuer.source.token() == "t1"
    issuer.source.refuse("another")
    assert issuer.source.token() == "t1"
    issuer.source.refuse("t1")
    assert issuer.source.token() == "t2"


@pytest.mark.parametrize("failing", [False, True], ids=["token", "failure"])
def test_however_many_wait_there_is_one_request(failing: bool) -> None:
    issuer = Issuer()
    issuer.gate.clear()
    issuer.failing = failing
    results: list[object] = []

    def take() -> None:
        try:
            results.append(issuer.source.token())
        except CallError as error:
            results.append(error.code)

    threads = [threading.Thread(target=take) for _ in range(32)]
    for thread in threads:
        thread.start()
    while issuer.asked == 0:
        threading.Event().wait(0.001)
    issuer.gate.set()
    for thread in threads:
        thread.join()
    assert results.count("t1" if not failing else FailureCode.OAUTH2_FAILED) >= 1
    assert len(results) == 32
    if not failing:
        assert issuer.asked == 1


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html>", b"[]", b'{"token_type": "bearer"}', b'{"access_token": 5}', b'{"access_token": ""}',
        b'{"access_token": "a\\r\\nX: y"}', b'{"access_token": "a", "token_type": "mac"}',
    ],
)  # fmt: skip
def test_an_answer_without_a_bearer_token_is_a_failure(api: Api, body: bytes) -> None:
    api.issue = lambda _: (200, body)
    config = RestApiConfig(
        base_address=api.url, oauth2_token_url=f"{api.url}/token", oauth2_client_id="i", oauth2_client_secret="s"
    )
    sender = sender_of(config, max_response_bytes=1000, environment={})
    with pytest.raises(CallError) as failed:
        sender.send(HttpRequest(Method.GET, f"{api.url}/x"))
    assert failed.value.code is FailureCode.OAUTH2_FAILED
    sender.close()


def test_an_authorization_of_the_event_wins(api: Api) -> None:
    text = api.route().replace(
        'WITH METHOD "GET" WITH ENDPOINT "/b"',
        'WITH METHOD "GET" WITH ENDPOINT "/b" WITH HEADERS ADD Authorization "Bearer own" WITH RETAIN "false"',
    )
    with hosting(text) as host:
        client = host.client("out")
        client.publish("in", b"")
        client.messages(2)
    while (seen := api.recorder.request()).path != "/b":
        continue
    assert seen.headers["Authorization"] == "Bearer own"


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
