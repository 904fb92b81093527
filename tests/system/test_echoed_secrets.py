"""A server that sends back what it got: no secret of a route comes out again, in nothing that the bridge says."""

import html
import json
import logging
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from amqtt_rest_bridge.__main__ import main
from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.loader import load
from amqtt_rest_bridge.lot.sources import Source
from tests.support.admin_client import admin_of
from tests.support.embedded_broker import Client, Host, hosting
from tests.support.http_recorder import Answer, Recorder, recording
from tests.support.http_target import Peer, Seen, Target, reply

TOKEN = "t0k/en+von-Ümläut"
PASSWORD = "pass word 4711"
VARIABLE = "hidden-tenant-7"
MESSAGE_TOKEN = "brought-by-a-message-99"
OWN_SECRETS = (TOKEN, PASSWORD, MESSAGE_TOKEN, "literal-query-55", "literal-header-66")

ROUTES = """
DEFINE ROUTE Own WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH BASE_ADDRESS "{url}/" + GET ENV "TENANT"
        WITH ENABLE_CLIENT "true"
        WITH AUTHORIZATION "Bearer " + GET SECRET "token"
        WITH RETRIES 0
    ADD EVENT Send
        WITH SOURCE_TOPIC "own/#"
        WITH METHOD "POST"
        WITH ENDPOINT "/a/{{topic.2}}?x=1&token=literal-query-55"
        WITH BODY '{{"order": "{{payload}}"}}'
        WITH DESTINATION_TOPIC "out"
        WITH HEADERS
            ADD "X-Api-Key" "literal-header-66"
DEFINE ROUTE Basic WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true" WITH RETRIES 0
        WITH USERNAME "operator" WITH PASSWORD GET SECRET "password"
    ADD EVENT Send WITH SOURCE_TOPIC "basic/#" WITH METHOD "POST" WITH ENDPOINT "/b/{{topic.2}}"
        WITH DESTINATION_TOPIC "out"
DEFINE ROUTE Brought WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true" WITH RETRIES 0
    ADD EVENT Send WITH SOURCE_TOPIC "brought/#" WITH METHOD "POST" WITH ENDPOINT "/c/{{topic.2}}"
        WITH DESTINATION_TOPIC "out" WITH HEADERS ADD "Authorization" "Bearer {{value.json.token}}"
"""


def forms(text: str) -> list[bytes]:
    """Return a text as servers send it back."""
    data = text.encode()
    return [
        data,
        json.dumps(text).encode(),
        json.dumps(json.dumps(text)).encode(),
        json.dumps(data.decode("latin-1")).encode(),
        quote(text, safe="").encode(),
        html.escape(text).encode(),
        b64encode(data),
        b64encode(b"a" + data),
        b64encode(b"ab" + data),
        data.hex().encode(),
    ]


def send_back(seen: Seen) -> Answer:
    """Answer with all that came, in each form; 200 where the path asks for it."""
    authorization = seen.values("authorization")[0]
    scheme, _, credentials = authorization.partition(" ")
    told = [authorization, credentials, seen.path, *seen.values("x-api-key")]
    told += [b64decode(credentials).decode().partition(":")[2]] if scheme == "Basic" else []
    lines = [form for text in told for form in forms(text)]
    return (200 if "/good" in seen.path else 403), b"\n".join(lines)


@pytest.fixture
def target() -> Iterator[Recorder]:
    with recording() as running:
        running.answer = send_back
        yield running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TENANT", VARIABLE)
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "password").write_text(PASSWORD)
    return tmp_path


def leaks(shown: str, secrets: tuple[str, ...]) -> list[str]:
    """Return the secrets that are in a text, in one of their forms."""
    pair = b64encode(f"operator:{PASSWORD}".encode()).decode()
    found = [text for text in (*secrets, pair) for form in forms(text) if form.decode() in shown]
    return sorted(set(found))


MESSAGE = json.dumps({"token": MESSAGE_TOKEN}).encode()


def failures_of(host: Host, client: Client) -> list[str]:
    for topic in ("own/1", "basic/1", "brought/1"):
        client.publish(topic, MESSAGE)
    return [payload.decode() for _, payload in client.messages(3)]


def test_what_a_server_echoes_is_in_no_failure_log_page_or_record(
    target: Recorder, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="amqtt_rest_bridge")
    routes = ROUTES.format(url=target.url)
    with hosting(routes, admin_port=0, secrets_dir=str(folder), status_seconds=1) as host:
        client, admin = host.client("out"), admin_of(host)
        failures = failures_of(host, client)
        pages = [admin.get(path).text for path in ("/", "/flow", "/metrics", "/api/routes")]
        for name in ("Own", "Basic", "Brought"):
            pages += [admin.get(f"/routes/{name}").text, admin.get(f"/api/routes/{name}/calls").text]
    texts = {"failures": "\n".join(json.loads(one)["body"] for one in failures), "log": caplog.text}
    texts |= {"pages": html.unescape("\n".join(pages)), "payloads": "\n".join(failures)}
    assert {place: leaks(text, OWN_SECRETS) for place, text in texts.items()} == {place: [] for place in texts}
    assert all("***" in json.loads(one)["body"] for one in failures)
    assert VARIABLE not in texts["log"] + texts["pages"]
    assert f"{target.url}/***/a/1?x=1&token=***" in texts["pages"]


def published(routes: str, secrets: Path, topic: str, payload: bytes = b"") -> bytes:
    """Publish a message and return what its route publishes."""
    with hosting(routes, secrets_dir=str(secrets)) as host:
        client = host.client("out")
        client.publish(topic, payload)
        return client.message()[1]


def test_a_successful_body_is_published_as_it_came(target: Recorder, folder: Path) -> None:
    payload = published(ROUTES.format(url=target.url), folder, "own/good", b"{}")
    assert payload == send_back(target.request())[1]
    assert TOKEN.encode() in payload


def test_try_shows_nothing_of_what_a_server_echoes(
    target: Recorder, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a.lot").write_text(ROUTES.format(url=target.url))
    command = ["try", str(folder / "a.lot"), "--secrets-dir", str(folder), "--send"]
    for topic in ("own/1", "basic/1", "own/good"):
        main([*command, "--topic", topic])
    main([*command, "--topic", "brought/1", "--payload", MESSAGE.decode()])
    shown = capsys.readouterr().out
    assert leaks(shown, OWN_SECRETS) == []
    urls = [line for line in shown.splitlines() if line.startswith("POST ")]
    assert urls[0] == f"POST {target.url}/***/a/1?x=1&token=***"


def test_a_location_that_holds_a_secret_is_not_quoted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    def redirect(peer: Peer) -> None:
        while peer.request() is not None:
            peer.send(reply(b"", "302 Found", f"Location: http://{quote(PASSWORD).replace('%20', '-')}.example.com/"))

    (folder / "password").write_text(PASSWORD.replace(" ", "-"))
    with Target(redirect) as target:
        failure = published(ROUTES.format(url=target.url), folder, "basic/1").decode()
    assert "redirect_refused" in failure
    assert PASSWORD.replace(" ", "-") not in failure + caplog.text
    assert "http://***.example.com" in failure


def test_what_a_proxy_echoes_of_its_password_is_masked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(peer: Peer) -> None:
        while (seen := peer.request()) is not None:
            given = seen.values("proxy-authorization")[0]
            peer.send(reply(f"{given} means user:proxy-w0rd".encode(), "407 Proxy Authentication Required"))

    with Target(refuse) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:proxy-w0rd@127.0.0.1:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        failure = json.loads(published(ROUTES.format(url="http://api.test"), folder, "basic/1"))
    assert failure["status"] == 407
    assert failure["body"] == "*** means user:***"


def test_the_body_of_a_failure_in_bytes_is_masked_before_it_is_encoded(target: Recorder, folder: Path) -> None:
    target.answer = lambda _: (500, b"\xff\xfe" + TOKEN.encode("latin-1") + b"\x80")
    failure = json.loads(published(ROUTES.format(url=target.url), folder, "own/1", b"{}"))
    assert (failure["body_encoding"], failure["body"]) == ("base64", b64encode(b"\xff\xfe***\x80").decode())


def test_the_definition_on_a_page_is_one_that_check_accepts(
    target: Recorder, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    routes = ROUTES.format(url=target.url)
    with hosting(routes, admin_port=0, secrets_dir=str(folder)) as host:
        page = admin_of(host).get("/routes/Own").text
    shown = html.unescape(page[page.index("DEFINE ROUTE") :].partition("<")[0])
    assert """BODY '{"order": "{payload}"}'""" in shown
    assert f'BASE_ADDRESS "{target.url}/" + GET ENV "TENANT"' in shown
    assert leaks(shown, (*OWN_SECRETS, VARIABLE)) == []
    (folder / "shown.lot").write_text(shown)
    assert main(["check", str(folder / "shown.lot")]) == 0
    before, after = (
        load([Source("a.lot", text)], Environment({"TENANT": VARIABLE}, folder)).routes[0] for text in (routes, shown)
    )
    assert after.client_events[0].body == before.client_events[0].body
    assert after.config.base_address == before.config.base_address
    assert after.definition == before.definition


CHALLENGE = 'WWW-Authenticate: Digest realm="all", qop="auth", algorithm=SHA-256, nonce="n"'


def test_a_digest_that_a_server_sends_back_is_masked_in_failures(tmp_path: Path) -> None:
    seen: list[str] = []

    def echo(peer: Peer) -> None:
        while (request := peer.request()) is not None:
            sent = request.headers["Authorization"] or ""
            seen.append(sent)
            head = f"X-Sent: {sent}" if sent else CHALLENGE
            peer.send(reply(json.dumps({"sent": sent}).encode(), "500 Error" if sent else "401 No", head))

    with Target(echo) as target:
        text = f"""
            DEFINE ROUTE R WITH TYPE REST_API
            ADD REST_API_CONFIG WITH BASE_ADDRESS "{target.url}" WITH ENABLE_CLIENT "true"
                WITH AUTH_SCHEME "digest" WITH USERNAME "me" WITH PASSWORD "word"
            ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "GET" WITH ENDPOINT "/" WITH DESTINATION_TOPIC "out"
        """
        failure = published(text.lstrip(), tmp_path, "in").decode()
    (digest,) = re.findall(r' response="([0-9a-f]{64})"', seen[-1])
    assert "Digest username" in failure
    assert digest not in failure
    assert "***" in failure
