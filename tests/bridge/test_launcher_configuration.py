"""What can be wrong with a configuration file, and where: the checks of `rest-bridge serve` without its process."""

import socket
import sys
from dataclasses import dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import Any, Literal

import dacite
import pytest
from amqtt.contexts import ListenerConfig, ListenerType

from amqtt_rest_bridge.broker import listeners
from amqtt_rest_bridge.cli.serve import bridge_check, configuration
from amqtt_rest_bridge.cli.serve.validation import InvalidValue, build
from amqtt_rest_bridge.errors import ConfigurationError, reason
from amqtt_rest_bridge.processes.settings import Settings
from tests.bridge.launcher_support import ANONYMOUS, BRIDGE, SERVER_ROUTE, Workplace


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return Workplace(tmp_path)


def faults(_place: Workplace) -> list[str]:
    """Return all faults of broker.yaml as they are printed, each with its hint on one line."""
    read = configuration.read(Path("broker.yaml"))
    found = [*configuration.broker_faults(read), *configuration.listed_plugins(read)[1]]
    return [str(fault).replace("\n", " ") for fault in found]


def test_configuration_without_faults_has_none(place: Workplace) -> None:
    assert faults(place) == []


MALFORMED = [
    pytest.param("a: b: c\n", "broker.yaml:1:5: mapping values are not allowed here", id="no-yaml"),
    pytest.param("a:\n\t- b\n", "broker.yaml:2:1: found character '\\t' that cannot start any token", id="tab"),
    pytest.param("a: 'b\n", "broker.yaml:2:1: found unexpected end of stream", id="open-quote"),
    pytest.param("a: \x01\n", "broker.yaml: unacceptable character #x0001", id="control-character"),
    pytest.param("a: 2026-13-45\n", "broker.yaml: month must be in 1..12", id="no-date"),
    pytest.param("", "broker.yaml is empty; a configuration is a mapping", id="empty"),
    pytest.param("- a\n", "broker.yaml holds a list; a configuration is a mapping", id="list"),
    pytest.param("a\n", "broker.yaml holds a single value; a configuration is a mapping", id="single-value"),
    pytest.param("plugins: {a.B: {}, a.B: {}}\n", "broker.yaml:1:20: a.B is given twice", id="twice"),
]


@pytest.mark.parametrize(("text", "message"), MALFORMED)
def test_malformed_file_is_refused_with_its_place(place: Workplace, text: str, message: str) -> None:
    place.write("broker.yaml", text)
    with pytest.raises(ConfigurationError) as caught:
        configuration.read(Path("broker.yaml"))
    assert str(caught.value).startswith(message)


def test_file_that_is_not_text_is_refused(place: Workplace) -> None:
    (place.folder / "broker.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigurationError, match=r"^the configuration broker.yaml is not UTF-8 text$"):
        configuration.read(Path("broker.yaml"))


def test_file_that_cannot_be_read_is_refused(place: Workplace) -> None:
    with pytest.raises(ConfigurationError, match=r"^cannot read the configuration .*: Is a directory$"):
        configuration.read(place.folder)


def test_merged_mappings_are_not_a_repetition(place: Workplace) -> None:
    place.configure(("plugins:", "  other: {<<: {type: tcp, bind: '127.0.0.1:0'}, bind: '127.0.0.1:0'}\nplugins:"))
    assert faults(place) == []


KEYS = [
    pytest.param("plugin: {}\n", "1:1: error: unknown key plugin hint: did you mean plugins?", id="misspelt"),
    pytest.param("b: 1\n", "1:1: error: unknown key b hint: known: listeners, sys_interval, ", id="like-no-other"),
    pytest.param("plugins: 3\n", "1:1: error: plugins must be a mapping or a list of", id="plugins"),
    pytest.param("plugins: [3]\n", "1:1: error: plugins must be a mapping or a list", id="plugin-number"),
    pytest.param("timeout_disconnect_delay: a\n", "1:1: error: timeout_disconnect_delay must be a whole", id="number"),
]


@pytest.mark.parametrize(("text", "fault"), KEYS)
def test_unknown_or_unusable_key_is_named_with_its_place(place: Workplace, text: str, fault: str) -> None:
    place.write("broker.yaml", text)
    assert faults(place)[0].startswith(f"broker.yaml:{fault}")


@pytest.mark.filterwarnings("ignore:'auth' and 'topic-check' are deprecated:DeprecationWarning")
def test_keys_that_amqtt_knows_are_not_faults(place: Workplace) -> None:
    place.configure(("plugins:", "topic-check: {enabled: false}\nsession_expiry_interval: 60\nplugins:"))
    assert faults(place) == []


LISTENERS = [
    pytest.param(
        "bind: 1883",
        "4:5: error: listener default: bind must be text or null, not a whole number "
        "hint: write an address and a port: 127.0.0.1:1883",
        id="number",
    ),
    pytest.param("bind: 127.0.0.1:x", "4:5: error: listener default: 127.0.0.1:x is not an address", id="no-port"),
    pytest.param("bind: ':65536'", "4:5: error: listener default: :65536 is not an address", id="port-too-high"),
    pytest.param(
        "bnd: x", "4:5: error: listener default: unknown setting bnd hint: did you mean bind?", id="unknown-setting"
    ),
    pytest.param("ssl: true", "4:5: error: listener default: ssl needs certfile and keyfile", id="tls-without-files"),
    pytest.param("certfile: x", "2:3: error: listener default: If specifying the 'certfile' or", id="no-key"),
    pytest.param(
        "certfile: x\n    keyfile: y", "2:3: error: listener default: 'certfile' does not exist", id="no-such-file"
    ),
    pytest.param(
        "ssl: true\n    certfile: routes.lot\n    keyfile: routes.lot",
        "4:5: error: listener default: certfile routes.lot and keyfile routes.lot cannot be used: ",
        id="no-certificate",
    ),
]


@pytest.mark.parametrize(("setting", "fault"), LISTENERS)
def test_unusable_listener_is_named(place: Workplace, setting: str, fault: str) -> None:
    place.configure(("bind: 127.0.0.1:0", setting))
    (found,) = faults(place)
    assert found.startswith(f"broker.yaml:{fault}")


SHAPES = [
    pytest.param("type: tcp", "type: tpc", "3:5: error: listener default: type must be tcp, ws or external", id="type"),
    pytest.param(
        "default:", "defualt:", "1:1: error: no listener is named default hint: did you mean default?", id="misspelt"
    ),
    pytest.param("default:", "web:", "1:1: error: no listener is named default hint: its settings", id="no-default"),
    pytest.param("listeners:", "listeners: 3\nauth:", "1:1: error: listeners must be a mapping of names", id="number"),
    pytest.param("listeners:", "listeners: {}\nauth:", "1:1: error: listeners must be a mapping of names", id="empty"),
    pytest.param("  default:", "  x: 3\n  default:", "2:3: error: listener x must be a mapping", id="one-number"),
]


@pytest.mark.parametrize(("old", "new", "fault"), SHAPES)
def test_listeners_of_a_wrong_shape_are_refused(place: Workplace, old: str, new: str, fault: str) -> None:
    place.configure((old, new))
    assert faults(place)[0].startswith(f"broker.yaml:{fault}")


def test_listener_that_others_bring_connections_to_needs_no_address(place: Workplace) -> None:
    place.configure(("type: tcp", "type: external"), ("bind: 127.0.0.1:0", "bind: nowhere:x"))
    assert faults(place) == []


PLUGINS = [
    pytest.param("nowhere.P: {}", "plugin nowhere.P cannot be imported: No module named 'nowhere'", id="no-module"),
    pytest.param("Plugin: {}", "plugin Plugin is not a path module.Class", id="no-dot"),
    pytest.param(
        "amqtt_rest_bridge.plugin.RestBrigdePlugin: {}",
        "plugin amqtt_rest_bridge.plugin.RestBrigdePlugin: amqtt_rest_bridge.plugin has no class RestBrigdePlugin "
        "hint: did you mean RestBridgePlugin?",
        id="misspelt-class",
    ),
    pytest.param(
        "amqtt_rest_brigde.plugin.RestBridgePlugin: {}",
        "plugin amqtt_rest_brigde.plugin.RestBridgePlugin cannot be imported: No module named 'amqtt_rest_brigde' "
        "hint: did you mean amqtt_rest_bridge.plugin.RestBridgePlugin?",
        id="misspelt-module",
    ),
    pytest.param("broken.Plugin: {}", "plugin broken.Plugin cannot be imported: KeyError: 'no such key'", id="raises"),
    pytest.param("pathlib.Path: {}", "plugin pathlib.Path is not a subclass of amqtt's BasePlugin", id="no-plugin"),
    pytest.param("own_plugin.OwnPlugin: {}", "plugin own_plugin.OwnPlugin: its Config is not a data", id="no-config"),
    pytest.param(
        "amqtt.plugins.logging_amqtt.EventLoggerPlugin: 3",
        "the settings of amqtt.plugins.logging_amqtt.EventLoggerPlugin must be a mapping",
        id="settings-number",
    ),
]


@pytest.mark.parametrize(("line", "fault"), PLUGINS)
def test_plugin_that_cannot_be_loaded_is_named(place: Workplace, line: str, fault: str) -> None:
    place.write("broken.py", "raise KeyError('no such key')")
    place.add_plugin("    class Config: ...\n")
    place.configure((BRIDGE, f"  {line}\n"))
    assert faults(place)[0].startswith(f"broker.yaml:7:3: error: {fault}")


def test_reason_of_a_plugin_whose_name_is_right_has_no_did_you_mean(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "template_api.plugin", None)
    place.configure((BRIDGE, "  template_api.plugin.TemplateApiPlugin: {}\n"))
    assert "hint" not in faults(place)[0]


def test_plugin_without_settings_needs_no_mapping(place: Workplace) -> None:
    place.configure((BRIDGE, "  amqtt.plugins.logging_amqtt.EventLoggerPlugin:\n"))
    assert faults(place) == []


def test_plugins_may_be_a_list_of_names_and_mappings(place: Workplace) -> None:
    anonymous = "  - amqtt.plugins.authentication.AnonymousAuthPlugin\n"
    place.configure((ANONYMOUS + BRIDGE, f"{anonymous}  - nowhere.Plugin: {{}}\n"))
    (fault,) = faults(place)
    assert "plugin nowhere.Plugin cannot be imported" in fault


def test_warning_is_given_when_no_client_could_connect(place: Workplace) -> None:
    place.configure((ANONYMOUS, ""))
    assert faults(place) == [
        "broker.yaml:5:1: warning: no authentication plugin is listed: no client can connect "
        "hint: add amqtt.plugins.authentication.AnonymousAuthPlugin, or one that checks passwords"
    ]


def test_configuration_without_plugins_gets_those_of_amqtt(place: Workplace) -> None:
    place.configure((f"plugins:\n{ANONYMOUS}{BRIDGE}", ""))
    assert faults(place) == []


SETTINGS = [
    pytest.param("workers: '1'", "workers must be a whole number, not text hint: write a number without", id="text"),
    pytest.param("routes: 3", "routes must be text or a list of text or null, not a whole number", id="union"),
    pytest.param("reload_seconds: a", "reload_seconds must be a number, not text", id="float"),
    pytest.param("spool: [a]", "spool must be text or null, not a list", id="list"),
    pytest.param("spool: 2026-01-31", "spool must be text or null, not date", id="date"),
    pytest.param("wrkers: 1", "unknown setting wrkers hint: did you mean workers?", id="unknown"),
]


@pytest.mark.parametrize(("setting", "fault"), SETTINGS)
def test_setting_that_does_not_fit_is_named(place: Workplace, setting: str, fault: str) -> None:
    place.configure((BRIDGE, f"  amqtt_rest_bridge.plugin.RestBridgePlugin:\n    {setting}\n"))
    (found,) = faults(place)
    assert found.startswith(f"broker.yaml:8:5: error: {fault}")


def test_value_of_a_setting_that_does_not_fit_is_not_repeated(place: Workplace) -> None:
    place.configure((BRIDGE, "  amqtt_rest_bridge.plugin.RestBridgePlugin: {workers: hunter2}\n"))
    (found,) = faults(place)
    assert "hunter2" not in found


def test_text_that_is_not_a_number_has_no_hint_about_quotes(place: Workplace) -> None:
    place.configure(("processes: 0", "processes: many"))
    assert faults(place) == ["broker.yaml:7:86: error: processes must be a whole number, not text"]


def test_missing_authentication_is_reported_beside_a_setting_that_does_not_fit(place: Workplace) -> None:
    place.configure((ANONYMOUS, ""), ("processes: 0", "processes: many"))
    assert [fault.partition(": ")[2][:40] for fault in faults(place)] == [
        "error: processes must be a whole number,",
        "warning: no authentication plugin is lis",
    ]


@dataclass
class Demanding:
    name: str
    size: int = 1

    def __post_init__(self) -> None:
        if self.name == "root":
            raise ValueError("root is reserved")


FITS = [
    pytest.param({"name": "a", "size": 2}, [], id="fits"),
    pytest.param({}, [InvalidValue(None, 'missing value for field "name"')], id="missing"),
    pytest.param({"name": 1}, [InvalidValue("name", "name must be text, not a whole number")], id="wrong-and-needed"),
    pytest.param({"name": "root"}, [InvalidValue(None, "root is reserved")], id="own-check"),
    pytest.param(
        {"name": "a", "size": [], "nam": 1, "x": 2},
        [
            InvalidValue("nam", "unknown setting nam", "did you mean name?"),
            InvalidValue("x", "unknown setting x"),
            InvalidValue("size", "size must be a whole number, not a list"),
        ],
        id="several",
    ),
]


@pytest.mark.parametrize(("values", "invalid"), FITS)
def test_every_value_that_does_not_fit_is_reported(values: dict[str, object], invalid: list[InvalidValue]) -> None:
    built, found = build(Demanding, values)
    assert sorted(found, key=str) == sorted(invalid, key=str)
    assert invalid or built == Demanding("a", 2)


@dataclass
class Inner:
    size: int = 1


@dataclass
class Varied:
    flag: bool = False
    number: int = 0
    ratio: float = 0.0
    limit: int | None = None
    text: str = ""
    names: list[str] = field(default_factory=list)
    acl: dict[str, list[str]] = field(default_factory=dict)
    sizes: dict[str, int] | None = None
    path: str | Path | None = None
    paths: str | list[str] | None = None
    inner: Inner = field(default_factory=Inner)
    anything: Any = None
    mapping: dict[Any, Any] = field(default_factory=dict)
    kind: Literal["a", "b"] = "a"


VALUES: list[Any] = [
    None, True, 0, 1, 2.5, "", "1", "a", [], ["a"], [1], {}, {"a": 1}, {"a": ["b"]}, {"a": [1]}, {1: ["b"]},
    {"size": 2}, {"size": "2"}, {"x": 1}, date(2026, 1, 31), [[]], {"a": None},
]  # fmt: skip


@pytest.mark.parametrize("name", [member.name for member in fields(Varied)])
def test_a_value_fits_when_amqtt_takes_it_but_true_is_not_a_number(name: str) -> None:
    for value in VALUES:
        try:
            expected = dacite.from_dict(Varied, {name: value}, dacite.Config(strict=True))
        except (dacite.DaciteError, TypeError, ValueError):  # also from inside dacite 1.9
            expected = None
        built, invalid = build(Varied, {name: value})
        true_as_number = value is True and name in ("number", "ratio", "limit")
        assert bool(invalid) == (expected is None or true_as_number), value
        assert invalid or built == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param({"acl": {"ann": ["a", 3]}}, "acl.ann.1 must be text, not a whole number", id="list-in-mapping"),
        pytest.param({"acl": {"ann": "a"}}, "acl.ann must be a list, not text", id="mapping"),
        pytest.param({"names": [["a"]]}, "names.0 must be text, not a list", id="list"),
        pytest.param({"inner": {"size": "hunter2"}}, "inner.size must be a whole number, not text", id="dataclass"),
        pytest.param({"inner": 3}, "inner must be Inner, not a whole number", id="no-dataclass"),
        pytest.param({"kind": "c"}, "kind must be", id="literal"),
    ],
)
def test_place_inside_a_value_is_named_without_the_value(values: dict[str, Any], message: str) -> None:
    _, (found,) = build(Varied, values)
    assert found.message.startswith(message)
    assert "hunter2" not in found.message


def test_reason_is_the_first_message_of_the_exceptions_behind_an_error() -> None:
    error = RuntimeError()
    error.__cause__ = OSError(2, "No such\n file", "x")
    assert reason(error) == "[Errno 2] No such file: 'x'"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param(ValueError("not this\n  way"), "not this way", id="speaks-for-itself"),
        pytest.param(KeyError("name"), "KeyError: 'name'", id="needs-its-name"),
        pytest.param(ZeroDivisionError(), "ZeroDivisionError", id="says-nothing"),
    ],
)
def test_reason_of_an_error_is_one_line(error: Exception, text: str) -> None:
    assert reason(error) == text


BRIDGE_FAULTS = [
    pytest.param(Settings("routes.lot", spool="nowhere/x.db"), "the folder of the setting spool does not", id="spool"),
    pytest.param(
        Settings("routes.lot", server_certfile="x", server_keyfile="y"), "server_certfile x and server_keyf", id="tls"
    ),
    pytest.param(Settings("nowhere.lot"), "cannot read nowhere.lot: No such file or directory", id="no-routes"),
]


def at_its_plugin(_names: tuple[str, ...]) -> str:
    return "broker.yaml:7:3"


@pytest.mark.parametrize(("settings", "fault"), BRIDGE_FAULTS)
def test_files_of_the_bridge_are_checked(
    place: Workplace, caplog: pytest.LogCaptureFixture, settings: Settings, fault: str
) -> None:
    assert not bridge_check.is_sound(settings, at_its_plugin)
    (message,) = caplog.messages
    assert message.startswith(f"broker.yaml:7:3: error: {fault}")


def test_sound_settings_of_the_bridge_are_not_complained_of(place: Workplace, caplog: pytest.LogCaptureFixture) -> None:
    assert bridge_check.is_sound(Settings("routes.lot", spool="spool.db"), at_its_plugin)
    assert caplog.messages == []


def test_certificate_files_of_routes_are_read(place: Workplace, caplog: pytest.LogCaptureFixture) -> None:
    place.write(
        "routes.lot",
        'DEFINE ROUTE Calls WITH TYPE REST_API ADD REST_API_CONFIG WITH ENABLE_CLIENT "true" '
        'WITH BASE_ADDRESS "https://127.0.0.1" WITH CA_FILE "broker.yaml" ADD EVENT E WITH SOURCE_TOPIC "t" '
        'WITH METHOD "GET" WITH ENDPOINT "/"',
    )
    assert not bridge_check.is_sound(Settings("routes.lot"), at_its_plugin)
    (message,) = caplog.messages
    assert message.startswith("routes.lot:1:1: error: route Calls: CA_FILE: broker.yaml cannot be used")


def test_route_files_are_checked(place: Workplace, caplog: pytest.LogCaptureFixture) -> None:
    place.write("routes.lot", SERVER_ROUTE.replace("POST", "POTS"))
    assert not bridge_check.is_sound(Settings("routes.lot"), at_its_plugin)
    assert "routes.lot:7:21: error: " in caplog.messages[0]


UNREACHABLE = [
    pytest.param("192.0.2.1:1883", "192.0.2.1:1883: Cannot assign requested address", id="no-address-of-ours"),
    pytest.param("no.such.host.invalid:1883", "no.such.host.invalid:1883: ", id="no-such-name"),
]


@pytest.mark.parametrize(("bind", "where"), UNREACHABLE)
def test_address_that_cannot_be_bound_is_named(bind: str, where: str) -> None:
    with pytest.raises(listeners.CannotListenError) as caught:
        listeners.probe({"web": ListenerConfig(bind=bind)})
    assert str(caught.value).startswith(f"listener web cannot listen on {where}")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", ""])
def test_taken_address_is_named_and_a_free_one_passes(host: str) -> None:
    family = socket.AF_INET if host == "127.0.0.1" else socket.AF_INET6
    with socket.create_server((host.strip("[]"), 0), family=family) as sock:
        bind = f"{host}:{sock.getsockname()[1]}"
        with pytest.raises(listeners.CannotListenError, match="Address already in use"):
            listeners.probe({"default": ListenerConfig(bind=bind)})
    listeners.probe({"default": ListenerConfig(bind=bind)})


def test_listeners_without_an_address_of_their_own_are_not_probed() -> None:
    external = ListenerConfig(type=ListenerType.EXTERNAL, bind="192.0.2.1:1883")
    listeners.probe({"default": external, "none": ListenerConfig(bind=None)})
