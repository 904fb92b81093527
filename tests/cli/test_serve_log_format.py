"""How `rest-bridge serve` writes its log: text like that of amqtt, or one JSON object a line, whatever others write."""

import json
import re

from tests.benchmarks.mqtt_wire import Wire
from tests.support.commands import ANONYMOUS, BRIDGE, Workplace
from tests.support.waiting import eventually

SPEAKING = r"""
    async def on_broker_post_start(self):
        log.info("first\nsecond \x1b[31m")
        try:
            raise ValueError("inside")
        except ValueError:
            log.exception("it failed")
        log.error("an error that waits for no other record")
        log.info("a secret place: %s", "déjà\u2028vu")
        threading.Thread(target=self.fail, name="worker").start()

    def fail(self):
        raise ValueError("in a thread")
"""


def spoken(place: Workplace, *options: str) -> list[str]:
    """Run a broker with the plugin to its end, and return what it has logged."""
    place.add_plugin(SPEAKING)
    with place.serving(*options) as running:
        running.line("thread worker ended")
        running.line("ready: ")
        running.terminate()
    return running.lines


def test_text_log_looks_like_that_of_amqtt_and_no_message_like_two(bare: Workplace) -> None:
    lines = spoken(bare)
    text = "\n".join(lines)
    assert re.search(r"\n\[\d{4}(-\d\d){2} (\d\d:){2}\d\d,\d{3}\] :: INFO - first\n    second \\x1b\[31m\n", text)
    assert "\n    ValueError: inside\n" in text
    assert "\n    ValueError: in a thread\n" in text
    assert all(line.startswith(("[", "    ")) for line in lines)


def test_json_log_has_one_object_a_line(bare: Workplace) -> None:
    records = [json.loads(line) for line in spoken(bare, "--log-format", "json")]
    assert all(set(record) - {"exception"} == {"time", "level", "logger", "message"} for record in records)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["time"]) for record in records)
    by_message = {record["message"]: record for record in records}
    assert by_message["first\nsecond \x1b[31m"]["logger"] == "own_plugin"
    assert by_message["it failed"]["level"] == "ERROR"
    assert by_message["it failed"]["exception"].endswith("ValueError: inside")
    assert by_message["thread worker ended"]["exception"].endswith("ValueError: in a thread")


def test_debug_log_has_connections_and_names_the_place_in_the_code(bare: Workplace) -> None:
    with bare.serving("-d") as running:
        Wire(running.port, "tester").close()
        running.line("INFO - Connection from 127.0.0.1:")
        running.terminate()
    assert any(re.search(r"\] amqtt\.broker:\d+ :: DEBUG - Broker started", line) for line in running.lines)


def test_warning_of_the_configuration_is_logged(place: Workplace) -> None:
    place.configure((BRIDGE, ""), (ANONYMOUS, "  amqtt.plugins.logging_amqtt.EventLoggerPlugin:\n"))
    with place.serving() as running:
        running.line(":: WARNING - broker.yaml:5:1: warning: no authentication plugin is listed")
        running.line("ready: ")
        running.terminate()


WRITING_PAST_THE_LOG = """\
    async def on_broker_post_start(self):
        print("[2026-01-31 12:00:00,000] :: ERROR - told by a child", file=sys.stderr)
        os.write(2, b"[x] :: NOTHING - of ours\\n\\n")
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", "import os; os.write(2, b'caf\\\\xe9\\\\n')")
        await child.wait()
"""


def test_json_log_takes_in_what_others_write_to_standard_error(bare: Workplace) -> None:
    bare.add_plugin(WRITING_PAST_THE_LOG)
    with bare.serving("--log-format", "json") as running:
        eventually(lambda: all(part in "".join(running.lines) for part in ("caf", "ready: ")))  # in any order
        running.terminate()
    records = {record["message"]: record for record in map(json.loads, running.lines)}
    assert records["told by a child"]["level"] == "ERROR"
    assert records["[x] :: NOTHING - of ours"]["level"] == "WARNING"
    assert records["caf\\xe9"]["logger"] == "amqtt_rest_bridge.cli.serve"


def test_json_log_of_both_plugins_is_json_from_the_first_line_to_the_last(place: Workplace) -> None:
    api = "  template_api.plugin.TemplateApiPlugin: {port: 0, database_url: 'sqlite:///library.db'}\n"
    place.configure((BRIDGE, api))
    with place.serving("--log-format", "json") as running:
        running.line("ready: ")
        running.terminate()
    messages = [json.loads(line)["message"] for line in running.lines]
    assert any(message.startswith("template API on ") for message in messages)
