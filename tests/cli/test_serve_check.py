"""`rest-bridge serve --check`: every fault at its place, and nothing is started."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from template_api import import_templates
from tests.support.commands import ANONYMOUS, BRIDGE, SERVER_ROUTE, Workplace, taken_port


def check(place: Workplace, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return place.run("serve", "-c", "broker.yaml", "--check", *arguments)


def test_check_says_ok_and_starts_nothing(place: Workplace) -> None:
    with taken_port() as port:  # which a start would need
        place.configure(("bind: 127.0.0.1:0", f"bind: 127.0.0.1:{port}"))
        place.write("routes.lot", SERVER_ROUTE.replace("'0'", f"'{port}'"))
        ended = check(place)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ok\n", "")


def test_check_says_ok_of_the_configuration_that_the_project_ships() -> None:
    root = Workplace.__new__(Workplace)
    root.folder = Path(__file__).parents[2]
    ended = root.run("serve", "-c", "conf/broker.yaml", "--check")
    assert ended.stdout.splitlines()[-1] == "ok"
    assert ended.returncode == 0


def test_check_prints_every_fault(place: Workplace) -> None:
    place.configure(
        ("type: tcp", "type: tpc"), (ANONYMOUS, "  nowhere.Plugin: {}\n"), ("processes: 0", "processes: 99")
    )
    place.write("routes.lot", SERVER_ROUTE.replace("SERVER_PORT '0'", "SERVER_PRT '0'"))
    ended = check(place)
    assert ended.returncode == 1
    expected = [
        'broker.yaml:3:5: error: listener default: type must be tcp or ws, not "tpc"',
        "broker.yaml:6:3: error: plugin nowhere.Plugin cannot be imported: No module named 'nowhere'",
        "broker.yaml:7:86: error: the setting processes is 99; allowed is 0 to 1; "
        "a bridge is one process: for more run workers, as many as you like (rest-bridge worker)",
        "routes.lot:5:14: error: unknown setting SERVER_PRT",
    ]
    lines = ended.stdout.splitlines()
    assert [line for line in lines if ": error: " in line][:3] == expected[:3]
    assert any(line.startswith(expected[3].partition(" unknown")[0]) and "SERVER_PRT" in line for line in lines)


TEMPLATE_API = "  template_api.plugin.TemplateApiPlugin: {}\n"


def test_check_tells_of_use_ssl_without_a_certificate_and_of_an_empty_host(place: Workplace) -> None:
    place.configure(("processes: 0", "server_host: ''"))
    place.write("routes.lot", SERVER_ROUTE.replace("WITH SERVER_PORT", "WITH USE_SSL 'true' WITH SERVER_PORT"))
    ended = check(place)
    assert ended.returncode == 1
    assert "broker.yaml:7:86: error: the setting server_host is empty" in ended.stdout
    assert 'routes.lot:2:1: error: route Intake has USE_SSL "true" and server events' in ended.stdout


@pytest.mark.parametrize("setting", ["max_body_bytes", "max_message_bytes", "max_response_bytes", "queue_bytes"])
def test_check_reports_a_size_that_cannot_be_read(place: Workplace, setting: str) -> None:
    place.configure(("processes: 0", f"{setting}: 64MB"))
    ended = check(place)
    assert f'error: the setting {setting} is "64MB", which is not a size; write 64MiB' in ended.stdout
    assert (ended.returncode, ended.stderr) == (1, "")


def test_a_token_that_was_to_come_from_the_environment_is_refused_at_its_place(place: Workplace) -> None:
    place.configure(("processes: 0", "admin_token: '${BRIDGE_ADMIN_TOKEN}'"))
    told = "error: the setting admin_token holds ${BRIDGE_ADMIN_TOKEN}, which nothing replaces here: name a file"
    ended = check(place)
    assert ended.returncode == 1
    assert told in ended.stdout
    assert told.removeprefix("error: ") in place.refusal()


@pytest.mark.parametrize("routes", ["missing: 3", "routes: routes.lot"])
def test_check_prints_each_fault_of_settings_at_once_at_its_line(place: Workplace, routes: str) -> None:
    settings = (
        routes, "workers: 0", "reload_seconds: -1", "server_certfile: cert.pem", "processes: many",
        "admin_host: 0.0.0.0", "admin_token: 3", "spool: nowhere/spool.db",
    )  # fmt: skip
    place.configure((ANONYMOUS, ""), (BRIDGE, f"{BRIDGE.partition('{')[0]}\n    " + "\n    ".join(settings) + "\n"))
    place.write("routes.lot", SERVER_ROUTE.replace("SERVER_PORT '0'", "SERVER_PRT '0'"))
    ended = check(place)
    assert ended.returncode == 1
    missing = "broker.yaml:6:3: error: the setting routes is missing"
    expected = [
        "broker.yaml:5:1: warning: no authentication plugin is listed",
        "broker.yaml:8:5: error: the setting workers is 0; allowed is 1 to 1024",
        "broker.yaml:9:5: error: the setting reload_seconds is -1; allowed is 0 to 86400",
        "broker.yaml:10:5: error: server_certfile and server_keyfile belong together",
        "broker.yaml:11:5: error: processes must be a whole number, not text",
        "broker.yaml:13:5: error: admin_token must be text or null, not a whole number",
        "broker.yaml:14:5: error: the folder of the setting spool does not exist",
        missing if routes == "missing: 3" else "routes.lot:5:14: error: ",
    ]
    printed = sorted(line for line in ended.stdout.splitlines() if re.match(r"[\w.]+:\d+:\d+: (error|warning)", line))
    unknown = [line for line in printed if "unknown setting missing" in line]
    assert len(printed) - len(unknown) == len(expected)
    assert [text for text in expected if not any(line.startswith(text) for line in printed)] == []


def test_check_reports_what_stops_the_template_api_at_each_line(place: Workplace) -> None:
    text = """\
  template_api.plugin.TemplateApiPlugin:
    port: 99999
    database_url: mysql://x
    library: /nonexistent
    base_url: nonsense
"""
    place.configure((BRIDGE, BRIDGE + text))
    ended = check(place)
    assert ended.returncode == 1
    assert ended.stdout.splitlines() == [
        "broker.yaml:9:5: error: port must be a whole number from 0 to 65535, not 99999",
        "broker.yaml:12:5: error: base_url must be an address such as https://library.example, not 'nonsense'",
        "broker.yaml:10:5: error: database_url: mysql is not supported; use sqlite or postgresql+psycopg",
        "broker.yaml:11:5: error: /nonexistent: there is no such file or folder",
    ]


def test_check_asks_a_library_only_for_a_database_that_a_start_would_fill(place: Workplace) -> None:
    def write(database: str) -> None:
        api = f"  template_api.plugin.TemplateApiPlugin: {{library: gone, database_url: 'sqlite:///{database}'}}\n"
        place.configure((BRIDGE, BRIDGE + api))

    one = place.folder / "library" / "one"
    one.mkdir(parents=True)
    (one / "template.yaml").write_text("title: One template\n")
    import_templates(f"sqlite:///{place.folder / 'filled.db'}", [one.parent])
    write("new.db")
    assert "error: gone: there is no such file or folder" in check(place).stdout
    assert not (place.folder / "new.db").exists()
    write("filled.db")
    assert check(place).stdout == "ok\n"


OWN_CHECK = """\
    @dataclass
    class Config:
        size: int = 1

        def setting_faults(self):
            if self.size > 2:
                yield ("size",), "size is above 2"
            if self.size < 0:
                raise KeyError("size")
"""


@pytest.mark.parametrize(
    ("size", "printed"),
    [
        pytest.param(1, "ok", id="fine"),
        pytest.param(3, "broker.yaml:8:26: error: size is above 2", id="its-fault"),
        pytest.param(-1, "broker.yaml:8:3: error: own_plugin.OwnPlugin cannot check its set", id="raises"),
        pytest.param("a", "broker.yaml:8:26: error: size must be a whole number, not text", id="type"),
    ],
)
def test_check_asks_every_plugin_that_has_a_check(place: Workplace, size: object, printed: str) -> None:
    place.add_plugin(OWN_CHECK, f"{{size: {size}}}")
    (line,) = check(place).stdout.splitlines()
    assert line.startswith(printed)


def test_check_names_the_line_of_a_setting_in_a_list_of_plugins(place: Workplace) -> None:
    anonymous = "  - amqtt.plugins.authentication.AnonymousAuthPlugin\n"
    listed = "  - amqtt_rest_bridge.plugin.RestBridgePlugin:\n      routes: routes.lot\n      workers: 0\n"
    place.configure((ANONYMOUS + BRIDGE, anonymous + listed))
    assert check(place).stdout.startswith("broker.yaml:9:7: error: the setting workers is 0")


def test_check_prints_json_when_the_log_format_is(place: Workplace) -> None:
    (record,) = map(json.loads, check(place, "--log-format", "json").stdout.splitlines())
    assert record["message"] == "ok"


def test_check_of_a_malformed_file_is_one_line(place: Workplace) -> None:
    place.write("broker.yaml", "a: b: c\n")
    ended = check(place)
    assert ended.returncode == 1
    assert ended.stdout.startswith("rest-bridge: error: broker.yaml:1:5: no name ends here: ")
    assert ended.stdout.count("\n") == 1
