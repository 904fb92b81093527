"""`rest-bridge serve --check`: every fault at its place, and nothing is started."""

import json
import re
from pathlib import Path

import pytest

from template_api import import_templates
from tests.support.commands import ANONYMOUS, BRIDGE, SERVER_ROUTE, Workplace, taken_port

MISSPELT = SERVER_ROUTE.replace("SERVER_PORT '0'", "SERVER_PRT '0'")


def check(place: Workplace, *options: str, status: int = 1) -> list[str]:
    """Check the configuration, which ends with an exit status, and return the lines that are printed."""
    ended = place.run("serve", "-c", "broker.yaml", "--check", *options)
    assert (ended.returncode, ended.stderr) == (status, "")
    return ended.stdout.splitlines()


def test_check_says_ok_and_starts_nothing(place: Workplace) -> None:
    with taken_port() as port:  # which a start would need
        place.configure(("bind: 127.0.0.1:0", f"bind: 127.0.0.1:{port}"))
        place.write("routes.lot", SERVER_ROUTE.replace("'0'", f"'{port}'"))
        assert check(place, status=0) == ["ok"]


def test_check_says_ok_of_the_configuration_that_the_project_ships() -> None:
    root = Workplace.__new__(Workplace)
    root.folder = Path(__file__).parents[2]
    ended = root.run("serve", "-c", "conf/broker.yaml", "--check")
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "ok")


def test_check_prints_every_fault(place: Workplace) -> None:
    place.configure(
        ("type: tcp", "type: tpc"), (ANONYMOUS, "  nowhere.Plugin: {}\n"), ("processes: 0", "processes: 99")
    )
    place.write("routes.lot", MISSPELT)
    *first, last = [line for line in check(place) if ": error: " in line]
    assert first == [
        'broker.yaml:3:5: error: listener default: type must be tcp or ws, not "tpc"',
        "broker.yaml:6:3: error: plugin nowhere.Plugin cannot be imported: No module named 'nowhere'",
        "broker.yaml:7:86: error: the setting processes is 99; allowed is 0 to 1; "
        "a bridge is one process: for more run workers, as many as you like (rest-bridge worker)",
    ]
    assert last.startswith("routes.lot:5:14: error: unknown setting SERVER_PRT")


def test_check_reports_use_ssl_without_a_certificate_an_empty_host_and_sizes_that_cannot_be_read(
    place: Workplace,
) -> None:
    sizes = ["max_body_bytes", "max_message_bytes", "max_response_bytes", "queue_bytes"]
    place.configure(("processes: 0", ", ".join(["server_host: ''", *(f"{size}: 64MB" for size in sizes)])))
    place.write("routes.lot", SERVER_ROUTE.replace("WITH SERVER_PORT", "WITH USE_SSL 'true' WITH SERVER_PORT"))
    printed = "\n".join(check(place))
    assert "broker.yaml:7:86: error: the setting server_host is empty" in printed
    assert 'routes.lot:2:1: error: route Intake has USE_SSL "true" and server events' in printed
    for size in sizes:
        assert f'error: the setting {size} is "64MB", which is not a size; write 64MiB' in printed


def test_a_token_that_was_to_come_from_the_environment_is_refused_at_its_place(place: Workplace) -> None:
    place.configure(("processes: 0", "admin_token: '${BRIDGE_ADMIN_TOKEN}'"))
    said = "the setting admin_token holds ${BRIDGE_ADMIN_TOKEN}, which nothing replaces here: name a file"
    assert f"error: {said}" in "\n".join(check(place))
    assert said in place.refusal()


@pytest.mark.parametrize("routes", ["missing: 3", "routes: routes.lot"])
def test_check_prints_each_fault_of_settings_at_once_at_its_line(place: Workplace, routes: str) -> None:
    settings = (
        routes, "workers: 0", "reload_seconds: -1", "server_certfile: cert.pem", "processes: many",
        "admin_host: 0.0.0.0", "admin_token: 3", "spool: nowhere/spool.db",
    )  # fmt: skip
    place.configure((ANONYMOUS, ""), (BRIDGE, f"{BRIDGE.partition('{')[0]}\n    " + "\n    ".join(settings) + "\n"))
    place.write("routes.lot", MISSPELT)
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
    printed = [line for line in check(place) if re.match(r"[\w.]+:\d+:\d+: (error|warning)", line)]
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
    assert check(place) == [
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
    assert "error: gone: there is no such file or folder" in "\n".join(check(place))
    assert not (place.folder / "new.db").exists()
    write("filled.db")
    assert check(place, status=0) == ["ok"]


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
    ("size", "status", "printed"),
    [
        pytest.param(1, 0, "ok", id="fine"),
        pytest.param(3, 1, "broker.yaml:8:26: error: size is above 2", id="its-fault"),
        pytest.param(-1, 1, "broker.yaml:8:3: error: own_plugin.OwnPlugin cannot check its set", id="raises"),
        pytest.param("a", 1, "broker.yaml:8:26: error: size must be a whole number, not text", id="type"),
    ],
)
def test_check_asks_every_plugin_that_has_a_check(place: Workplace, size: object, status: int, printed: str) -> None:
    place.add_plugin(OWN_CHECK, f"{{size: {size}}}")
    (line,) = check(place, status=status)
    assert line.startswith(printed)


def test_check_names_the_line_of_a_setting_in_a_list_of_plugins(place: Workplace) -> None:
    anonymous = "  - amqtt.plugins.authentication.AnonymousAuthPlugin\n"
    listed = "  - amqtt_rest_bridge.plugin.RestBridgePlugin:\n      routes: routes.lot\n      workers: 0\n"
    place.configure((ANONYMOUS + BRIDGE, anonymous + listed))
    assert check(place)[0].startswith("broker.yaml:9:7: error: the setting workers is 0")


def test_check_prints_json_when_the_log_format_is_and_at_any_level(place: Workplace) -> None:
    (line,) = check(place, "--log-format", "json", "--log-level", "error", status=0)
    assert json.loads(line)["message"] == "ok"


def test_check_of_a_malformed_file_is_one_line(place: Workplace) -> None:
    place.write("broker.yaml", "a: b: c\n")
    (line,) = check(place)
    assert line.startswith("rest-bridge: error: broker.yaml:1:5: a colon too many: ")
