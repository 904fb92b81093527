"""`rest-bridge install`: what it fetches, checks and writes, and what faulty or hostile libraries cost."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from responses import RequestsMock as Web

from amqtt_rest_bridge.cli import library as template_library
from tests.cli.conftest import Printed, Run
from tests.support.http_target import AUTHORITY, Peer, Target, answering, reply, server_tls
from tests.support.ports import free_port
from tests.support.route_text import BASIC
from tests.support.served_api import serving
from tests.support.terminal import Terminal

CONF = Path(__file__).parents[2] / "conf"
ADDRESS = "http://library.example"
URL = f"{ADDRESS}/api/templates/one"
OTHER = BASIC.replace("ROUTE R", "ROUTE S")


def cell(text: str = BASIC) -> dict[str, Any]:
    return {"kind": 2, "language": "lot", "value": text}


def answer(**notebooks: list[Any]) -> dict[str, Any]:
    listed = [{"filename": f"{name}.lotnb", "cells": cells} for name, cells in notebooks.items()]
    return {"template": {"id": "1", "title": "One", "url": URL, "notebooks": listed}}


ONE = json.dumps(answer(a=[cell()])).encode()


class Installing:
    """Installs the template `one` into the folder `routes`."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, *arguments: str, status: int = 0, source: str = ADDRESS) -> Printed:
        return self._run("install", "one", "--from", source, "--into", "routes", *arguments, status=status)


@pytest.fixture
def install(run: Run, folder: Path) -> Installing:
    return Installing(run)


def written(folder: Path) -> list[str]:
    """Every file below the folder, hidden ones included."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """The libraries of all hosts; of several answers to a URL the last one stays."""
    monkeypatch.setattr(template_library, "_PAUSES", (0.01, 0.01, 0.01))
    with Web(assert_all_requests_are_fired=False) as mock:
        yield mock


def test_the_notebooks_of_a_template_of_the_real_api_are_written_as_it_has_them(folder: Path, run: Run) -> None:
    with serving(folder, "--library", str(CONF / "library")) as api:
        source = ["--from", f"http://127.0.0.1:{api.port}/"]
        output = run("install", "alert-to-chat", *source)
        assert (output.err, output.out.splitlines()) == (
            "",
            [
                "conf/routes/slack.lotnb: route AlertToSlack",
                "conf/routes/discord.lotnb: route AlertToDiscord",
                "calls: discord.com, hooks.slack.com",
                "reads the topics: alerts/+",
                "writes the topics: alert-delivery/failed",
                "written into the new folder conf/routes: 2 files",
            ],
        )
        draft = next(path.parent.name for path in CONF.glob("library/*/template.yaml") if "draft" in path.read_text())
        assert "No published template" in run("install", draft, *source, status=1).err
        for slug, hint in (
            ("sensor-rest-facad", "did you mean sensor-rest-facade?\n"),
            ("wether-on-request", "did you mean weather-on-request"),
            ("weather", "the library finds weather-on-request\n"),
            ("xyzzy", "GET /api/templates lists the published templates"),
        ):
            assert f"\nhint: {hint}" in run("install", slug, *source, status=1).err
    for name in ("slack.lotnb", "discord.lotnb"):
        original = json.loads((CONF / "library" / "alert-to-chat" / name).read_text())
        assert json.loads((folder / "conf" / "routes" / name).read_text()) == original
    assert written(folder / "conf") == ["routes/discord.lotnb", "routes/slack.lotnb"]
    run("check", "conf/routes")


def test_redirects_are_followed_within_the_library(folder: Path, web: Web, install: Installing) -> None:
    web.get(URL, status=308, headers={"Location": "/moved/one"})
    web.get(f"{ADDRESS}/moved/one", body=ONE)
    install(source="http://me:pass@library.example")
    assert written(folder) == ["routes/a.lotnb"]
    assert {call.request.headers["Authorization"] for call in web.calls} == {"Basic bWU6cGFzcw=="}


def test_a_library_that_is_overloaded_or_closes_the_connection_is_asked_again(
    folder: Path, web: Web, install: Installing
) -> None:
    web.get(URL, status=503)
    web.get(URL, body=CUT_OFF)
    web.get(URL, body=ONE)
    install()
    assert written(folder) == ["routes/a.lotnb"]
    assert web.calls[0].request.headers["User-Agent"].startswith("amqtt-rest-bridge/")


def test_the_library_is_reached_through_the_proxy_of_the_environment(
    install: Installing, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Target(answering(reply(ONE))) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        install(source="http://library.example/v1")
    assert [seen.line for seen in proxy.requests] == ["GET http://library.example/v1/api/templates/one HTTP/1.1"]


def test_a_library_that_never_answers_is_given_up(install: Installing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_library, "TOTAL_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "has not answered in 0.2 s" in install(source=source, status=1).err


def test_the_body_of_a_redirect_is_not_waited_for(install: Installing) -> None:
    def redirect(peer: Peer) -> None:
        peer.request()
        peer.send(reply(b"x" * 100, "302 Found", "Location: /elsewhere")[:-50])
        peer.wait()

    with Target(redirect) as target:
        assert "this was redirect 6" in install(source=f"http://127.0.0.1:{target.port}", status=1).err


def test_authorities_are_those_of_the_file_that_ssl_cert_file_names(
    install: Installing, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Target(answering(reply(ONE)), tls=server_tls()) as secure:
        source = f"https://localhost:{secure.port}"
        assert "TLS with it fails: " in install(source=source, status=1).err
        monkeypatch.setenv("SSL_CERT_FILE", AUTHORITY)
        install(source=source)
    monkeypatch.setenv("SSL_CERT_FILE", "away.pem")
    assert "away.pem" in install(source=source, status=1).err


CUT_OFF = requests.exceptions.ChunkedEncodingError("cut off")
DEEP = b'{"template": {"title": "x", "notebooks": [{"filename": "a.lotnb", "cells": [{"a": ' + b"[" * 100_000
NOT_FOUND = {"error": {"code": "template_not_found", "message": "No template \x1b[31m", "hint": "List them."}}


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        pytest.param({"status": 404, "json": NOT_FOUND}, r"404: No template \x1b[31m", id="no such template"),
        pytest.param({"status": 404, "body": b"<h1>gone"}, "answers with status 404\n", id="another site"),
        pytest.param({"status": 500, "json": {"error": "boom"}}, "answers with status 500\n", id="failing"),
        pytest.param({"body": b"<html>"}, "not a template: JSON is malformed", id="a page"),
        pytest.param({"body": b"\xff\xfe{"}, "not a template", id="not text"),
        pytest.param({"body": DEEP}, "not a template", id="nested without end"),
        pytest.param({"json": []}, "not a template: Expected `object`", id="a list"),
        pytest.param({"json": {"template": {"title": "x"}}}, "missing required field `notebooks`", id="no notebooks"),
        pytest.param({"json": answer(a=[7])}, "Expected `object`, got `int`", id="cells that are numbers"),
        pytest.param({"json": answer()}, "no route of type REST_API", id="no notebook"),
        pytest.param({"json": answer(a=[{"kind": 1}])}, "no route of type REST_API", id="no route"),
        pytest.param({"body": b" " * (template_library.MAX_BYTES + 1)}, "more than 16777216 bytes", id="without end"),
        pytest.param({"body": requests.ReadTimeout("slow")}, "does not answer in time", id="slow"),
        pytest.param({"body": requests.exceptions.ProxyError("no")}, "the proxy does not work", id="proxy"),
        pytest.param({"body": CUT_OFF}, "it breaks off its answer", id="cut off"),
        pytest.param({"headers": {"Content-Encoding": "gzip"}, "body": b"1"}, "compresses its answer", id="compressed"),
        pytest.param({"status": 302, "headers": {"Location": URL}}, "this was redirect 6", id="in circles"),
        *(
            pytest.param({"status": 302, "headers": {"Location": place}}, f"redirects to {shown}; only", id=place)
            for place, shown in {
                "https://library.example:22/": "https://library.example:22",
                "http://127.0.0.1:9464/api/routes": "http://127.0.0.1:9464",
                "//169.254.169.254/latest": "http://169.254.169.254",
                "file:///etc/passwd": "an address that cannot be used",
                "https://me:pass@elsewhere.example/": "an address that cannot be used",
                "https://[x": "an address that cannot be used",
                "https://x:9x/": "an address that cannot be used",
            }.items()
        ),
    ],
)
def test_a_faulty_library_costs_a_line_with_a_hint_and_writes_nothing(
    folder: Path, web: Web, install: Installing, reply: dict[str, Any], said: str
) -> None:
    web.get(URL, **reply)
    output = install(status=1)
    assert said in output.err
    assert "\nhint: " in output.err
    assert "\x1b" not in output.err
    assert (output.out, written(folder)) == ("", [])


def test_a_library_that_cannot_be_asked_costs_a_line_with_a_hint(
    folder: Path, install: Installing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_library, "_PAUSES", (0.01,))
    monkeypatch.setattr(template_library, "_READ_SECONDS", 0.2)

    def break_off(peer: Peer) -> None:
        peer.request()
        peer.send(reply(b"x" * 100)[:-50])
        peer.sock.close()

    def hang(peer: Peer) -> None:
        peer.request()
        peer.send(reply(b"x" * 100)[:-50])
        peer.wait()

    broken, hanging, plain = Target(break_off), Target(hang), Target(lambda peer: peer.send(reply(status="400 No")))
    with broken, hanging, plain:
        for source, said in (
            (f"http://127.0.0.1:{free_port()}", "it cannot be reached: Connection refused\nhint: start it"),
            (f"http://127.0.0.1:{broken.port}", "it breaks off its answer\nhint: try again"),
            (f"http://127.0.0.1:{hanging.port}", "it does not answer in time: timed out\nhint: try again"),
            (f"https://127.0.0.1:{plain.port}", "TLS with it fails: "),
            (f"https://127.0.0.1:{plain.port}", "\nhint: SSL_CERT_FILE names"),
        ):
            assert said in install(source=source, status=1).err
    assert written(folder) == []


@pytest.mark.parametrize(
    "filename",
    [
        "../a.lotnb", "/tmp/a.lotnb", "b/a.lotnb", "..", "", ".a.lotnb", "b\\a.lotnb", "C:a.lotnb", "a\n.lotnb",
        "a\0.lotnb", "a\u202e.lotnb", " a.lotnb", "a.py", "a.lotnb/", f"{'a' * 250}.lotnb",
    ],
)  # fmt: skip
def test_a_name_that_is_not_that_of_a_notebook_is_refused(
    folder: Path, web: Web, install: Installing, filename: str
) -> None:
    notebooks = [{"filename": filename, "cells": [cell()]}]
    web.get(URL, json={"template": {"title": "One", "notebooks": notebooks}})
    assert install("--force", status=1).err.startswith("rest-bridge install: the notebook ")
    assert list(folder.iterdir()) == []


METOD = "#2:7:14: error: unknown setting METOD\nhint: did you mean METHOD?\n"


@pytest.mark.parametrize(
    ("notebooks", "said"),
    [
        pytest.param(
            {"a": [cell()], "A": [cell(OTHER)]}, "two notebooks of the template have one name", id="two alike"
        ),
        pytest.param(
            {"a": [cell()], "b": [{"kind": 1}, cell(OTHER.replace("METHOD", "METOD"))]},
            f"routes/b.lotnb{METOD}",
            id="an error, at its place",
        ),
        pytest.param({"big": [cell(BASIC + " " * 1024 * 1024)]}, "the notebook big.lotnb has 1048", id="over 1 MiB"),
    ],
)
def test_notebooks_that_cannot_be_used_are_refused_and_nothing_is_written(
    folder: Path, web: Web, install: Installing, notebooks: dict[str, Any], said: str
) -> None:
    web.get(URL, json=answer(**notebooks))
    assert said in install(status=1).err
    assert written(folder) == []


def test_a_route_that_the_folder_has_already_is_an_error(folder: Path, web: Web, install: Installing) -> None:
    (folder / "routes").mkdir()
    (folder / "routes" / "z.lot").write_text(BASIC)
    web.get(URL, body=ONE)
    assert "routes/a.lotnb#1:1:1: error: there are two routes R" in install(status=1).err
    assert written(folder) == ["routes/z.lot"]


def test_only_notebooks_with_routes_are_written_and_remarked_on(folder: Path, web: Web, install: Installing) -> None:
    simulator = [{"kind": 2, "language": "python", "value": "print()"}, cell("DEFINE MODEL X\n")]
    web.get(URL, json=answer(simulator=simulator, solution=[cell(), cell("DEFINE MODEL Y\n")]))
    remarks = install().err
    assert written(folder) == ["routes/solution.lotnb"]
    assert "routes/solution.lotnb#2:1:1: notice: " in remarks
    assert "simulator" not in remarks


def test_variables_and_secrets_are_named_with_what_is_missing(
    folder: Path, web: Web, install: Installing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THERE", "value-of-a-variable")
    (folder / "token").write_text("value-of-a-secret")
    route = BASIC.replace('"http://api.example.com"', 'GET ENV "AWAY"')
    route += '        WITH BODY "{env.THERE} {secret.token} {secret.lost}"\n'
    web.get(URL, json=answer(a=[cell(route)]))
    output = install("--secrets-dir", ".")
    assert output.err == ""
    assert output.out.splitlines() == [
        "routes/a.lotnb: route R",
        "calls: {env.AWAY}",
        "reads the topics: in",
        "reads the variable AWAY: missing; set it in the environment of the broker (or of this command)",
        "reads the variable THERE: present",
        "reads the secret lost: missing; put that file there, or name another folder: secrets_dir (check, try, lsp: "
        "--secrets-dir)",
        "reads the secret token: present",
        "The broker does not load these routes, or any other change, before what is missing is there.",
        "written into the new folder routes: 1 file",
    ]
    assert written(folder / "routes") == ["a.lotnb"]


def test_a_file_that_exists_is_kept_unless_force_is_given(folder: Path, web: Web, install: Installing) -> None:
    (folder / "routes").mkdir()
    mine = folder / "routes" / "b.lotnb"
    mine.write_text("[]")
    web.get(URL, json=answer(a=[cell()], b=[cell(OTHER)]))
    assert "routes/b.lotnb exists\nhint: --force" in install(status=1).err
    assert (written(folder), mine.read_text()) == (["routes/b.lotnb"], "[]")
    assert install("--force").out.endswith("written into routes: 2 files\n")
    assert written(folder) == ["routes/a.lotnb", "routes/b.lotnb"]
    assert "ROUTE S" in mine.read_text()


def test_a_link_out_of_the_folder_is_never_followed(folder: Path, web: Web, install: Installing) -> None:
    (folder / "routes").mkdir()
    outside = folder / "outside"
    outside.write_text("mine")
    (folder / "routes" / "a.lotnb").symlink_to(outside)
    web.get(URL, body=ONE)
    install(status=1)
    install("--force")
    assert not (folder / "routes" / "a.lotnb").is_symlink()
    assert outside.read_text() == "mine"


def test_what_is_written_already_is_taken_back_when_a_later_file_cannot_be(
    folder: Path, web: Web, install: Installing
) -> None:
    (folder / "routes" / "c.lotnb").mkdir(parents=True)  # no file can have this name
    (folder / "routes" / "b.lotnb").write_text("[]")
    web.get(URL, json=answer(**{name: [cell(BASIC.replace("ROUTE R", f"ROUTE {name}"))] for name in "abc"}))
    assert "cannot write into routes: " in install("--force", status=2).err
    assert written(folder) == ["routes/b.lotnb"]
    assert (folder / "routes" / "b.lotnb").read_text() == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        *([slug] for slug in ("..", ".", "", "a/b", "../a", "a\\b", "a\nb")),
        *(["one", "--from", f"http://{rest}"] for rest in ("", "a?b", "a#b", "a:x", "a b", "a\nb")),
        *(["one", "--from", address] for address in ("library.example", "file:///etc", "ftp://a")),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_a_usage_error(folder: Path, run: Run, arguments: list[str]) -> None:
    assert run("install", *arguments, status=2).err.startswith("rest-bridge install: ")
    assert written(folder) == []


@pytest.mark.parametrize(
    ("into", "said"),
    [
        pytest.param("file", "file is not a folder\n", id="file"),
        pytest.param("x" * 300, "nothing was written\n", id="long"),
    ],
)
def test_a_folder_that_cannot_be_is_a_usage_error(
    folder: Path, web: Web, install: Installing, into: str, said: str
) -> None:
    (folder / "file").write_text("")
    web.get(URL, body=ONE)
    assert install("--into", into, status=2).err.endswith(said)
    assert written(folder) == ["file"]


def test_the_password_of_an_address_is_not_shown(web: Web, install: Installing) -> None:
    web.get(URL, status=404)
    assert "hunter2" not in install(source="http://user:hunter2@library.example", status=1).err
    assert web.calls[0].request.headers["Authorization"].startswith("Basic ")


FULL = """\
DEFINE ROUTE Full WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH ENABLE_CLIENT "true"
        WITH ENABLE_SERVER "true"
        WITH SERVER_PORT 8181
        WITH BASE_ADDRESS "https://api.example.com:8443/v1"
        WITH OAUTH2_TOKEN_URL "https://id.example.net/token"
        WITH OAUTH2_CLIENT_ID "x"
        WITH OAUTH2_CLIENT_SECRET GET SECRET "client"
        WITH SERVER_TOKEN {token}
    ADD EVENT Out
        WITH SOURCE_TOPIC "in/+"
        WITH DESTINATION_TOPIC "out/x/{{topic.2}}"
        WITH ERROR_TOPIC "failed"
        WITH METHOD "POST"
        WITH ENDPOINT "/x?access_token={{secret.client}}"
        WITH HEADERS
            ADD X-API-Key {key}
    ADD EVENT In
        WITH METHOD "POST"
        WITH ENDPOINT "/in"
        WITH DESTINATION_TOPIC "received/{{request_id}}"
        WITH REPLY_TOPIC "replies/{{request_id}}"
"""
FROM_OUTSIDE = FULL.format(token='GET ENV "CALLERS"', key='"{value.json.key}"')
SAMPLES = FULL.format(token='"{secret.CALLERS|change-me}"', key='"a" + "b"')


def test_hosts_topics_ports_secrets_and_variables_are_shown_before_anything_is_written(
    web: Web, install: Installing
) -> None:
    web.get(URL, json=answer(a=[cell(FROM_OUTSIDE)]))
    assert [line.partition("; ")[0] for line in install().out.splitlines()] == [
        "routes/a.lotnb: route Full",
        "calls: api.example.com:8443, id.example.net",
        "reads the topics: in/+, replies/{request_id}",
        "writes the topics: failed, out/x/{topic.2}, received/{request_id}",
        "listens on the ports: 8181",
        "reads the variable CALLERS: missing",
        "reads the secret client: missing",
        "The broker does not load these routes, or any other change, before what is missing is there.",
        "written into the new folder routes: 1 file",
    ]


def test_credentials_that_the_template_publishes_are_refused_unless_allowed(
    folder: Path, web: Web, install: Installing
) -> None:
    web.get(URL, json=answer(a=[cell(SAMPLES)]))
    output = install("--yes", status=1)
    places = (
        "SERVER_TOKEN of route Full (routes/a.lotnb#1:10:27), "
        "the header X-API-Key of route Full (routes/a.lotnb#1:18:27)"
    )
    assert f"rest-bridge install: the template publishes {places}; nothing was written\n" in output.err
    assert "hint: everybody can read them: --allow-sample-credentials" in output.err
    assert (output.out, written(folder)) == ("", [])
    allowed = install("--allow-sample-credentials").out
    assert f"published with the template, to be changed: {places}\n" in allowed
    assert written(folder) == ["routes/a.lotnb"]


def test_of_notebooks_with_thousands_of_faults_200_are_listed(folder: Path, web: Web, install: Installing) -> None:
    faulty = [cell(BASIC + "        WITH METOD 1\n" * 30_000)]
    web.get(URL, json=answer(a=faulty, b=faulty, c=faulty))
    lines = install(status=1).err.splitlines()
    assert sum(line.startswith("routes/a.lotnb#1:") for line in lines) == 200
    assert sum(line.endswith(" errors more") for line in lines) == 1
    assert written(folder) == []


@pytest.mark.parametrize(
    ("arguments", "answered", "status", "files"),
    [
        pytest.param([], "y\n", 0, ["routes/a.lotnb"], id="yes"),
        pytest.param([], "n\n", 1, [], id="no"),
        pytest.param([], "\n", 1, [], id="return alone"),
        pytest.param(["--yes"], None, 0, ["routes/a.lotnb"], id="not asked"),
    ],
)
def test_on_a_terminal_it_asks_before_it_writes(
    folder: Path, arguments: list[str], answered: str | None, status: int, files: list[str]
) -> None:
    with Target(answering(reply(ONE))) as target:
        terminal = Terminal(
            "install", "one", "--from", f"http://127.0.0.1:{target.port}", "--into", "routes", *arguments, cwd=folder
        )
        if answered is not None:
            terminal.expect(r"reads the topics: in\r\nWrite into the new folder routes\? \[y/N\]: ")
            assert written(folder) == []
            terminal.type(answered)
        assert terminal.end() == status
    assert written(folder) == files
    assert ("[y/N]" in terminal.text) == (answered is not None)
