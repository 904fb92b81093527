"""The shipped configuration and the library's routes at work: in a real broker, over real sockets."""

import base64
import hashlib
import hmac
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from amqtt_rest_bridge.__main__ import main as rest_bridge
from template_api.plugin import TemplateApiPlugin
from template_api.serving import supervisor
from tests.support.asking import ask
from tests.support.documents import page, section
from tests.support.embedded_broker import PLUGIN, Client, Host, configuration
from tests.support.forked import ForkedApi
from tests.support.waiting import SECONDS, eventually

CONF: Final = Path(__file__).parents[2] / "conf"
DEMO: Final = (CONF / "routes" / "demo.lot").read_text(encoding="utf-8")
TEMPLATE_API: Final = "template_api.plugin.TemplateApiPlugin"


def payload_on(client: Client, topic: str) -> bytes:
    """Wait for a message on a topic. amqtt 0.12.1 sends a new client what is retained for others' subscriptions too."""
    while True:
        published, payload = client.message()
        if published == topic:
            return payload


def login(user: str, password: str = "change-me") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def on_free_port(routes: str) -> str:
    return routes.replace("WITH SERVER_PORT '8080'", "WITH SERVER_PORT '0'")


# --- the command line on the shipped files ---


def test_check_finds_nothing_to_say_about_the_shipped_routes(capsys: pytest.CaptureFixture[str]) -> None:
    assert rest_bridge(["check", "--json", str(CONF)]) == 0
    assert json.loads(capsys.readouterr().out) == []


def try_commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the arguments of each `rest-bridge try` in the library's texts, without --send."""
    for text in sorted((CONF / "library").glob("*/README.md")):
        joined = text.read_text(encoding="utf-8").replace("\\\n", " ")
        for command in re.findall(r"^rest-bridge (try .+)$", joined, re.MULTILINE):
            yield text.parent.name, [word for word in shlex.split(command) if word != "--send"]
        for command in re.findall(r"`rest-bridge (try [^`]+)`", joined):
            yield text.parent.name, shlex.split(command)


@pytest.mark.parametrize("arguments", [pytest.param(given, id=name) for name, given in try_commands()])
def test_try_command_of_a_text_prints_a_request_or_its_condition(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert rest_bridge([arguments[0], str(CONF.parent / arguments[1]), *arguments[2:]]) == 0
    printed = capsys.readouterr()
    assert re.search(r"^(GET|POST|PUT|DELETE) https?://|^# skipped: WHEN", printed.out, re.MULTILINE)
    assert printed.err == ""


# --- broker.yaml and demo.lot ---


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """The broker of broker.yaml, on free ports, with the database in a folder of the test's own."""
    folder = tmp_path_factory.mktemp("shipped")
    routes = folder / "demo.lot"
    routes.write_text(on_free_port(DEMO), encoding="utf-8")
    config: dict[str, Any] = yaml.safe_load((CONF / "broker.yaml").read_text(encoding="utf-8"))
    config["listeners"]["default"]["bind"] = "127.0.0.1:0"
    config["plugins"][PLUGIN]["routes"] = str(routes)
    config["plugins"][TEMPLATE_API] |= {
        "port": 0,
        "library": str(CONF / "library"),
        "database_url": f"sqlite:///{folder / 'library.db'}",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "ChildProcess", ForkedApi)  # its own start is for other tests
        host = Host(config)
        yield host
        host.stop()


def api_port(host: Host) -> int:
    plugin = host.broker.plugins_manager.get_plugin("TemplateApiPlugin")
    assert isinstance(plugin, TemplateApiPlugin)
    assert plugin.bound_port is not None
    return plugin.bound_port


def test_broker_configuration_serves_the_sample_library_on_first_start(shipped: Host) -> None:
    answer = ask(api_port(shipped), "/api/templates?limit=30")
    slugs = {template["slug"] for template in answer.json["results"]}
    assert answer.status == 200
    assert slugs == {path.parent.name for path in CONF.glob("library/*/template.yaml")} - {
        "shelly-relays",  # a draft
        "influxdb-1-write",  # hidden
    }


DEMONSTRATION: Final = section(page("README.md"), "Demonstration")


def requests_shown() -> Iterator[tuple[str, list[str], str]]:
    """Yield the port, the other arguments and the beginning of the answer of each curl command of the demonstration."""
    shown = re.findall(r"^\$ curl (.+)\n(.+)", DEMONSTRATION, re.MULTILINE)
    for command, answer in shown:
        *options, url = shlex.split(command)
        port, path = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/.*)", url).groups()  # type: ignore[union-attr]
        if "-u" not in options:  # that one needs another route
            yield port, [path, *(word for word in options if word[0] != "-")], answer.removesuffix(" ...")


SHOWN: Final = [pytest.param(*one, id=one[1][0]) for one in requests_shown()]


@pytest.mark.parametrize(("port", "arguments", "answer"), SHOWN)
def test_request_of_the_demonstration_is_answered_as_shown(
    shipped: Host, port: str, arguments: list[str], answer: str
) -> None:
    path, *bodies = arguments
    bound = shipped.http_port if port == "8080" else api_port(shipped)
    status, body, _ = ask(bound, path, *(one.encode() for one in bodies))
    assert f"HTTP/1.1 {status} OK" == answer if answer.startswith("HTTP/") else body.decode().startswith(answer)


# --- the library's routes in server mode ---


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A broker with every route of the library that listens, all on one port."""
    routes = tmp_path_factory.mktemp("library") / "server-mode.lot"
    cells = [cell for path in sorted(CONF.rglob("*.lotnb")) for cell in json.loads(path.read_text(encoding="utf-8"))]
    texts = [cell["value"] for cell in cells if 'WITH ENABLE_SERVER "true"' in cell["value"]]
    routes.write_text(on_free_port("\n".join(texts)), encoding="utf-8")
    host = Host(configuration(routes))
    yield host
    host.stop()


GITHUB_DELIVERY: Final = b'{"repository": {"full_name": "acme/firmware"}, "sender": {"login": "ana"}}'
GITHUB_SIGNATURE: Final = "sha256=" + hmac.new(b"change-me", GITHUB_DELIVERY, hashlib.sha256).hexdigest()
UPLINK: Final = (
    b'{"end_device_ids": {"device_id": "soil-3"}, "uplink_message": {"f_port": 2, "decoded_payload": {"moisture": 31}}}'
)


SHOP: Final = {"Authorization": login("shop")}
GITHUB: Final = {"X-GitHub-Event": "push", "X-Hub-Signature-256": GITHUB_SIGNATURE}


@pytest.mark.parametrize(
    ("request_line", "headers", "body", "topic", "expected"),
    [
        pytest.param(
            "POST /hooks/shop/orders", SHOP, b'{"order": 1001}', "shop/orders/received", {"order": 1001}, id="order"
        ),
        pytest.param(
            "PUT /hooks/shop/stock/bolt-m8", SHOP, b'{"stock": 12}', "shop/stock/bolt-m8",
            {"sku": "bolt-m8", "stock": 12}, id="stock",
        ),
        pytest.param(
            "PUT /api/greenhouse/actuators/fan", {"Authorization": login("dashboard")}, b'{"on": true}',
            "greenhouse/actuators/fan/set", {"on": True}, id="actuator",
        ),
        pytest.param(
            "POST /ota/announce/pump-7", {"Authorization": login("ota")}, b"{}", "devices/pump-7/ota/announce", {},
            id="update",
        ),
        pytest.param(
            "POST /hooks/github", GITHUB, GITHUB_DELIVERY, "github/events",
            {"event": "push", "repository": "acme/firmware", "sender": "ana"}, id="signed-webhook",
        ),
        pytest.param(
            "POST /hooks/lorawan/uplink", {"Authorization": login("things")}, UPLINK, "lorawan/up",
            {"device": "soil-3", "port": 2, "values": {"moisture": 31}}, id="uplink",
        ),
    ],
)  # fmt: skip
def test_request_to_a_template_is_published_as_its_text_says(
    library: Host, request_line: str, headers: Mapping[str, str], body: bytes, topic: str, expected: Mapping[str, Any]
) -> None:
    client, (method, path) = library.client(topic), request_line.split()
    assert ask(library.http_port, path, body, method=method, **headers).status == 200
    assert json.loads(payload_on(client, topic)).items() >= expected.items()


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        pytest.param("POST", "/hooks/shop/orders", {"Authorization": login("shop", "guessed")}, id="shop"),
        pytest.param("PUT", "/api/greenhouse/actuators/fan", {}, id="greenhouse"),
        pytest.param("POST", "/ota/announce/pump-7", {"Authorization": login("shop")}, id="update"),
        pytest.param("POST", "/hooks/github", {"X-Hub-Signature-256": GITHUB_SIGNATURE}, id="signature"),
        pytest.param("POST", "/devices/pump-7/rpc/status", {}, id="rpc"),
        pytest.param("POST", "/hooks/lorawan/uplink", {}, id="uplink"),
    ],
)
def test_template_refuses_a_caller_it_does_not_know(
    library: Host, method: str, path: str, headers: Mapping[str, str]
) -> None:
    assert ask(library.http_port, path, b'{"other": "body"}', method=method, **headers).status == 401


def test_greenhouse_api_answers_with_the_latest_value(library: Host) -> None:
    client = library.client("greenhouse/temperature")
    client.publish("greenhouse/temperature", b"23.5")
    payload_on(client, "greenhouse/temperature")
    answers = []

    def is_read() -> bool:  # the bridge process may get the value a moment after the subscribers
        answers.append(ask(library.http_port, "/api/greenhouse/temperature", Authorization=login("dashboard")))
        return answers[-1].status != 404

    eventually(is_read, "the value never came")
    assert answers[-1][:2] == (200, b"23.5")


def test_device_answers_an_http_call_over_mqtt(library: Host) -> None:
    device = library.client("rpc/pump-7/#")
    with ThreadPoolExecutor(1) as caller:
        path, allowed = "/devices/pump-7/rpc/status", login("backoffice")
        call = caller.submit(ask, library.http_port, path, b'{"detail": true}', Authorization=allowed)
        topic, payload = next(message for message in iter(device.message, None) if message[0].startswith("rpc/"))
        request = json.loads(payload)
        assert topic == f"rpc/pump-7/status/{request['request']}"
        assert request["arguments"] == {"detail": True}
        device.publish(f"rpc-reply/{request['request']}", b'{"running": true}')
        assert call.result(SECONDS)[:2] == (200, b'{"running": true}')
