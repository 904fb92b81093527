"""What keeps `rest-bridge serve` from starting: one line, exit status 1, nothing left running."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.commands import BRIDGE, SERVER_ROUTE, Workplace, taken_port


def test_missing_file_is_refused(place: Workplace) -> None:
    (place.folder / "broker.yaml").unlink()
    missing = "cannot read broker.yaml: No such file or directory"
    assert place.refusal() == f"rest-bridge: error: {missing} (working directory: {place.folder})"


def test_several_faults_are_one_line_that_says_where_the_others_are(place: Workplace) -> None:
    place.configure(
        (BRIDGE, "  amqtt_rest_bridge.plugin.RestBridgePlugin: {wrkers: 1, routs: x, spool: 3, capture: x}\n")
    )
    assert place.refusal().endswith("unknown setting wrkers (did you mean workers?); 4 more, see --check")


@pytest.mark.parametrize("logged", ["the database is gone", "the plugin cannot start: the database is gone"])
def test_reason_that_a_plugin_logs_before_it_raises_is_not_said_twice(bare: Workplace, logged: str) -> None:
    bare.add_plugin(
        "    def __init__(self, context):\n        log.error('another matter')\n"
        f"        log.error({logged!r})\n        raise ValueError('the database is gone')\n"
    )
    lines = bare.run("serve", "-c", "broker.yaml").stderr.splitlines()
    assert lines[-1] == "rest-bridge: error: OwnPlugin cannot start: the database is gone"
    assert lines[-2].endswith(":: ERROR - another matter")


@pytest.mark.parametrize("hook", ["on_broker_pre_start", "on_broker_post_start"])
def test_exception_of_a_start_hook_keeps_the_broker_from_serving(place: Workplace, hook: str) -> None:
    place.add_plugin(f"    async def {hook}(self):\n        raise ValueError('no database')\n")
    assert place.refusal() == "rest-bridge: error: OwnPlugin cannot start: no database"


def test_plugins_before_the_one_that_fails_are_closed(place: Workplace) -> None:
    place.configure(("processes: 0", "processes: 1"))
    place.add_plugin(
        "    def __init__(self, context):\n"
        "        children = open(f'/proc/self/task/{os.getpid()}/children').read().split()\n"
        "        raise ValueError(f'children {children}')\n"
    )
    last = place.refusal()
    (child,) = re.findall(r"\d+", last)
    assert not Path(f"/proc/{child}").exists()


def test_plugin_that_cannot_be_closed_does_not_hide_the_reason(place: Workplace) -> None:
    place.write("other_plugin.py", "from amqtt.plugins.base import BasePlugin\n\n\nclass Other(BasePlugin):\n"
                "    async def close(self):\n        raise RuntimeError('stuck')\n")  # fmt: skip
    place.configure((BRIDGE, "  other_plugin.Other: {}\n"))
    place.add_plugin("    def __init__(self, context):\n        raise ValueError('not today')\n")
    ended = place.run("serve", "-c", "broker.yaml")
    assert "plugin Other failed to close" in ended.stderr
    assert ended.stderr.splitlines()[-1] == "rest-bridge: error: OwnPlugin cannot start: not today"


def test_every_fault_of_route_files_is_a_line_before_the_last(place: Workplace) -> None:
    place.write("routes.lot", SERVER_ROUTE.replace("SERVER_PORT '0'", "SERVER_PRT '0'").replace('"POST"', '"POTS"'))
    ended = place.run("serve", "-c", "broker.yaml")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "rest-bridge: error: RestBridgePlugin cannot start: the route files have 2 errors, listed above"
    )
    assert re.search(r":: ERROR - routes\.lot:5:\d+: error: .*SERVER_PRT", ended.stderr)
    assert re.search(r":: ERROR - routes\.lot:7:\d+: error: .*POTS", ended.stderr)


def test_taken_mqtt_port_is_named_with_its_listener(place: Workplace) -> None:
    with taken_port() as port:
        place.configure(("bind: 127.0.0.1:0", f"bind: 127.0.0.1:{port}"))
        assert place.refusal() == (
            f"rest-bridge: error: listener default cannot listen on 127.0.0.1:{port}: Address already in use; "
            f"set bind to another port, or end the program that has it: ss -ltnp 'sport = :{port}'"
        )


def test_mqtt_port_that_server_mode_has_taken_is_named(place: Workplace) -> None:
    with taken_port() as port:
        pass
    place.write("routes.lot", SERVER_ROUTE.replace("'0'", f"'{port}'"))
    place.configure(("bind: 127.0.0.1:0", f"bind: 127.0.0.1:{port}"))
    assert f"listener default cannot listen on 127.0.0.1:{port}: Address already in use; " in place.refusal()


def test_taken_port_of_server_mode_is_named(place: Workplace) -> None:
    with taken_port() as port:
        place.write("routes.lot", SERVER_ROUTE.replace("'0'", f"'{port}'"))
        last = place.refusal()
    assert last.startswith(f"rest-bridge: error: RestBridgePlugin cannot start: cannot listen on 127.0.0.1 port {port}")
    assert "(SERVER_PORT): Address already in use; set SERVER_PORT to another port" in last


def test_last_line_is_json_too_when_the_log_is(place: Workplace) -> None:
    place.configure(("routes: routes.lot", "routes: nowhere.lot"))
    ended = place.run("serve", "-c", "broker.yaml", "--log-format", "json")
    records = [json.loads(line) for line in ended.stderr.splitlines()]
    assert records[-1]["level"] == "CRITICAL"
    assert records[-1]["message"].startswith("rest-bridge: error: RestBridgePlugin cannot start: cannot read")


@pytest.mark.parametrize(
    ("option", "value", "choices"),
    [
        pytest.param("--log-format", "xml", "'text', 'json'", id="format"),
        pytest.param("--log-level", "loud", "'debug', 'info', 'warning', 'error'", id="level"),
    ],
)
def test_a_value_that_an_option_does_not_have_exits_with_2(run: Run, option: str, value: str, choices: str) -> None:
    refused = run("serve", "-c", "broker.yaml", option, value, status=2).err
    assert refused.startswith("Usage: rest-bridge")
    assert f"'{value}' is not one of {choices}" in refused
