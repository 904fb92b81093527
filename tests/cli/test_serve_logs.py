"""What `rest-bridge serve` logs at which level: calls and requests, but not who connects."""

import re

import pytest

from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.asking import ask
from tests.support.commands import ANONYMOUS, BRIDGE, SERVER_ROUTE, Running, Workplace
from tests.support.http_target import Target, echo

ROUTES = """
DEFINE ROUTE Forward WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH BASE_ADDRESS "http://127.0.0.1:{port}"
        WITH ENABLE_CLIENT "true"
        WITH USERNAME "the user"
        WITH PASSWORD "the password"
    ADD EVENT Send
        WITH SOURCE_TOPIC "in/+"
        WITH METHOD "POST"
        WITH ENDPOINT "/the-path"
        WITH BODY "{{payload}}"
        WITH DESTINATION_TOPIC "out"

DEFINE ROUTE Guarded WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH ENABLE_SERVER "true"
        WITH SERVER_PORT '0'
        WITH SERVER_USERNAME "caller"
        WITH SERVER_PASSWORD "hook-key"
    ADD EVENT Knock
        WITH METHOD "POST"
        WITH ENDPOINT "/hook-key/knock"
        WITH DESTINATION_TOPIC "knocked"
"""
AT_EVERY_LEVEL = """\
    async def on_broker_post_start(self):
        for level in ("debug", "info", "warning", "error"):
            getattr(log, level)("logged as %s", level)
        os.kill(os.getpid(), 15)
"""
EVENT_LOGGER = "  amqtt.plugins.logging_amqtt.EventLoggerPlugin:\n"
ID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
LEVELS = ["debug", "info", "warning", "error"]


def use_both_modes(running: Running) -> None:
    """Send a message, a request and a request without credentials, and wait for what comes of them."""
    http = int(running.line("server mode listens on http://127.0.0.1:").rpartition(":")[2])
    client = Wire(running.port, "tester")
    client.subscribe("out")
    client.send(publish_packet("in/1", b"the payload"))
    assert client.messages() == [("out", b"the payload")]
    assert [ask(http, path, b"the body").status for path in ("/webhook", "/hook-key/knock")] == [200, 401]
    client.close()


@pytest.mark.parametrize("processes", [0, 1])
def test_calls_and_requests_are_logged_but_no_connections_payloads_or_secrets(place: Workplace, processes: int) -> None:
    with Target(echo) as target:
        place.configure(("processes: 0", f"processes: {processes}"), (ANONYMOUS, ANONYMOUS + EVENT_LOGGER))
        place.write("routes.lot", SERVER_ROUTE + ROUTES.format(port=target.port))
        with place.serving() as running:
            use_both_modes(running)
            running.terminate()
    text = "\n".join(running.lines)
    answered = rf"POST http://127\.0\.0\.1:{target.port} answered 200 in \d+ ms, waited \d+ ms, message on in/1"
    assert len(re.findall(f"INFO - route Forward, event Send: {answered}, run {ID}\n", text)) == 1
    received = f"INFO - route Intake, event Received: answered POST /webhook with 200, run {ID}\n"
    assert len(re.findall(received, text)) == 1
    knocked = rf"INFO - route Guarded, event Knock: answered POST /\*\*\*/knock with 401 unauthorized, run {ID}\n"
    assert len(re.findall(knocked, text)) == 1
    hidden = ["the user", "the password", "the-path", "the payload", "the body", "hook-key"]
    hidden += ["Connection", "acquired", "FIRED"]
    assert [text for text in hidden if text in "\n".join(running.lines)] == []


@pytest.mark.parametrize("level", LEVELS)
def test_lower_levels_are_not_logged(bare: Workplace, level: str) -> None:
    bare.add_plugin(AT_EVERY_LEVEL)
    with bare.serving("--log-level", level.upper()) as running:
        assert running.end() == 0
    logged = [line.rpartition(" ")[2] for line in running.lines if "logged as" in line]
    assert logged == LEVELS[LEVELS.index(level) :]


def test_the_process_of_the_template_api_logs_from_the_same_level_on(place: Workplace) -> None:
    place.configure((BRIDGE, "  template_api.plugin.TemplateApiPlugin: {port: 0}\n"))
    place.add_plugin(AT_EVERY_LEVEL)
    with place.serving("--log-level", "warning") as running:
        assert running.end() == 0
    assert any("WARNING - the library is empty" in line for line in running.lines)
    assert [line for line in running.lines if "INFO" in line] == []
