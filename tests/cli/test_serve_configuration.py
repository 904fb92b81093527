"""What can be wrong with a configuration file, and where: the checks of `rest-bridge serve` without its process."""

import sys
from pathlib import Path

import pytest

from amqtt_rest_bridge.cli import configuration
from amqtt_rest_bridge.errors import ConfigurationError
from tests.support.commands import ANONYMOUS, BRIDGE, CONFIGURATION, Workplace

KNOWN_KEYS = "topic-check: {enabled: false}\nsession_expiry_interval: 60\nplugins:"
MERGED = "  other: {<<: {type: tcp, bind: '127.0.0.1:0'}, bind: '127.0.0.1:0'}\nplugins:"
OTHER_SETTINGS = pytest.mark.filterwarnings("ignore:'auth' and 'topic-check' are deprecated:DeprecationWarning")


def faults(_place: Workplace) -> list[str]:
    """Return all faults of broker.yaml as they are printed, each with its hint on one line."""
    read = configuration.read(Path("broker.yaml"))
    found = [*configuration.broker_faults(read), *configuration.listed_plugins(read)[1]]
    return [str(fault).replace("\n", " ") for fault in found]


@OTHER_SETTINGS
@pytest.mark.parametrize(
    "replacements",
    [
        pytest.param([], id="as it is"),
        pytest.param([("plugins:", MERGED)], id="merged mappings"),
        pytest.param([("plugins:", KNOWN_KEYS)], id="keys that amqtt knows"),
        pytest.param([("tcp", "external"), ("127.0.0.1:0", "nowhere:x")], id="others bring the connections"),
    ],
)
def test_configuration_without_faults_has_none(place: Workplace, replacements: list[tuple[str, str]]) -> None:
    place.configure(*replacements)
    assert faults(place) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(b"a: b: c\n", "broker.yaml:1:5: a colon too many", id="no-yaml"),
        pytest.param(b"[" * 1000, "broker.yaml is nested too deeply", id="nested"),
        pytest.param(b"", "broker.yaml is empty; a configuration is a mapping", id="empty"),
        pytest.param(b"- a\n", "broker.yaml holds a list; a configuration is a mapping", id="list"),
        pytest.param(b"a\n", "broker.yaml holds a single value; a configuration is a mapping", id="single-value"),
        pytest.param(b"a: \xff\n", "cannot read broker.yaml: it is not UTF-8 text", id="not-text"),
    ],
)
def test_malformed_file_is_refused_with_its_place(place: Workplace, text: bytes, message: str) -> None:
    (place.folder / "broker.yaml").write_bytes(text)
    with pytest.raises(ConfigurationError) as caught:
        configuration.read(Path("broker.yaml"))
    assert str(caught.value).startswith(message)
    with pytest.raises(ConfigurationError, match=r"^cannot read .*: Is a directory$"):
        configuration.read(place.folder)


WRONG_TYPE = "error: wrong value type for"
KEYS = {
    "misspelt": ("plugin: {}", "error: unknown key plugin (did you mean plugins?)"),
    "like no other": ("b: 1", "error: unknown key b"),
    "of a worker": ("group: a", "error: unknown key group (a worker's file? it runs with rest-b"),
    "plugins": ("plugins: 3", f"{WRONG_TYPE} plugins: must be a mapping or a list"),
    "plugin, a number": ("plugins: [3]", f"{WRONG_TYPE} plugins: must be "),
    "number": ("timeout_disconnect_delay: a", f"{WRONG_TYPE} timeout_disconnect_delay: must be a whole number"),
}
DEFAULT = "4:5: error: listener default:"
CERTIFICATE = "ssl: true\n    certfile: routes.lot\n    keyfile: routes.lot"
NOT_FOUND = "certfile: x\n    keyfile: y"
LISTENERS = {
    "bind, a number": ("bind: 1883", f"4:5: {WRONG_TYPE} listeners.bind: must be text or null, not"),
    "no port": ("bind: x:y", f"{DEFAULT} bind x:y cannot be used: "),
    "host": ("bind: 127.0.0.1", f"{DEFAULT} bind 127.0.0.1 cannot be used: it has no port; write HOST"),
    "IPv6": ("bind: '[::1]'", f"{DEFAULT} bind [::1] cannot be used: it has no port"),
    "too high": ("bind: ':65536'", f"{DEFAULT} bind :65536 cannot be used: a port"),
    "unknown setting": ("bnd: x", "4:5: error: unknown key bnd (did you mean bind?)"),
    "TLS without files": ("ssl: true", f"{DEFAULT} ssl with certfile None and"),
    "no key": ("certfile: x", "1:1: error: If specifying the 'certfile' or 'keyfile', both are"),
    "no such file": (NOT_FOUND, "1:1: error: 'certfile' does not exist : x"),
    "no certificate": (
        CERTIFICATE,
        f"{DEFAULT} ssl with certfile routes.lot and keyfile routes.lot cannot be used: [S",
    ),
}
NO_DEFAULT = "1:1: error: no listener is named default"
ONE = "  default:"
SHAPES = {
    "type": ("type: tcp", "type: tpc", "3:5: error: listener default: type must be tcp or ws, not"),
    "no default": ("default:", "web:", NO_DEFAULT),
    "listeners, a number": (
        "listeners:",
        "listeners: 3\nauth:",
        f"1:1: {WRONG_TYPE} listeners: must be a mapping, not",
    ),
    "empty": ("listeners:", "listeners: {}\nauth:", NO_DEFAULT),
    "one, a number": (ONE, f"  x: 3\n{ONE}", "2:3: error: listener x: must be a mapping (type, bind), not a whole num"),
    "name, a number": (ONE, f"  5: {{}}\n{ONE}", "2:3: error: the name of listener 5 must be text, not a whole number"),
    "one, null": (ONE, f"  x:\n{ONE}", "2:3: error: listener x: must be a mapping (type, bind), not null"),
}
PLUGIN = "amqtt_rest_bridge.plugin.RestBridgePlugin"
MEANT = f"hint: did you mean {PLUGIN}?"
MISSPELT_CLASS = "amqtt_rest_bridge.plugin.RestBrigdePlugin"
MISSPELT_MODULE = "amqtt_rest_brigde.plugin.RestBridgePlugin"
NO_CLASS = 'Module "amqtt_rest_bridge.plugin" does not define a "RestBrigdePlugin" attribute/class'
LOGGER = "amqtt.plugins.logging_amqtt.EventLoggerPlugin"
PLUGINS = {
    "no module": ("nowhere.P: {}", "plugin nowhere.P cannot be imported: No module named 'nowhere'"),
    "no dot": ("Plugin: {}", "plugin Plugin cannot be imported: Plugin doesn't look like a module path"),
    "misspelt class": (f"{MISSPELT_CLASS}: {{}}", f"plugin {MISSPELT_CLASS} cannot be imported: {NO_CLASS} {MEANT}"),
    "misspelt module": (
        f"{MISSPELT_MODULE}: {{}}",
        f"plugin {MISSPELT_MODULE} cannot be imported: No module named 'amqtt_rest_brigde' {MEANT}",
    ),
    "raises": ("broken.Plugin: {}", "plugin broken.Plugin cannot be imported: KeyError: 'no such key'"),
    "no plugin": ("pathlib.Path: {}", "plugin pathlib.Path is not a subclass of amqtt's BasePlugin"),
    "no Config": ("own_plugin.OwnPlugin: {}", "plugin own_plugin.OwnPlugin: its Config is not a data"),
    "settings, a number": (f"{LOGGER}: 3", f"the settings of {LOGGER} must be a mapping"),
}
SETTINGS = {
    "text": ("workers: '1'", "workers must be a whole number, not text hint: write a number without"),
    "union": ("routes: 3", "routes must be text or a list of text or null, not a whole number"),
    "float": ("reload_seconds: a", "reload_seconds must be a number, not text"),
    "list": ("spool: [a]", "spool must be text or null, not a list"),
    "date": ("spool: 2026-01-31", "spool must be text or null, not date"),
    "unknown": ("wrkers: 1", "unknown setting wrkers hint: did you mean workers?"),
    "not repeated": ("workers: hunter2", "workers must be a whole number, not text"),
}
FAULTS = [
    *(pytest.param(CONFIGURATION, key, f"1:1: {fault}", id=f"key: {name}") for name, (key, fault) in KEYS.items()),
    *(pytest.param("bind: 127.0.0.1:0", *one, id=f"listener: {name}") for name, one in LISTENERS.items()),
    *(pytest.param(*one, id=f"listeners: {name}") for name, one in SHAPES.items()),
    *(
        pytest.param(BRIDGE, f"  {line}\n", f"7:3: error: {fault}", id=f"plugin: {name}")
        for name, (line, fault) in PLUGINS.items()
    ),
    *(
        pytest.param(BRIDGE, f"  {PLUGIN}:\n    {line}\n", f"8:5: error: {fault}", id=f"setting: {name}")
        for name, (line, fault) in SETTINGS.items()
    ),
]
"""What is written in the place of a part of the configuration, and the fault that it is."""


@OTHER_SETTINGS
@pytest.mark.parametrize(("old", "new", "fault"), FAULTS)
def test_a_fault_is_named_at_its_place_and_no_value_is_repeated(
    place: Workplace, old: str, new: str, fault: str
) -> None:
    place.write("broken.py", "raise KeyError('no such key')")
    place.add_plugin("    class Config: ...\n")
    place.configure((old, new))
    first = faults(place)[0]
    assert first.startswith(f"broker.yaml:{fault}")
    assert "hunter2" not in first


def test_reason_of_a_plugin_whose_name_is_right_has_no_did_you_mean(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "template_api.plugin", None)
    place.configure((BRIDGE, "  template_api.plugin.TemplateApiPlugin: {}\n"))
    assert "hint" not in faults(place)[0]


def test_plugins_may_be_a_list_of_names_and_mappings(place: Workplace) -> None:
    anonymous = "  - amqtt.plugins.authentication.AnonymousAuthPlugin\n"
    place.configure((ANONYMOUS + BRIDGE, f"{anonymous}  - nowhere.Plugin: {{}}\n"))
    (fault,) = faults(place)
    assert "plugin nowhere.Plugin cannot be imported" in fault


def test_warning_is_given_when_no_client_could_connect_also_beside_other_faults(place: Workplace) -> None:
    warning = (
        "broker.yaml:5:1: warning: no authentication plugin is listed: no client can connect "
        "hint: add amqtt.plugins.authentication.AnonymousAuthPlugin, or one that checks passwords"
    )
    place.configure((ANONYMOUS, ""))
    assert faults(place) == [warning]
    place.configure((ANONYMOUS, ""), ("processes: 0", "processes: many"))
    (other, second) = faults(place)
    assert ("error: processes must be a whole number," in other, second) == (True, warning)


COREFLUX = "reload_seconds: 0, coreflux: {users: [editor], routes: live}"
CHECKS_PASSWORDS = "  amqtt.plugins.authentication.FileAuthPlugin: {password_file: users}\n"


def test_warning_is_given_when_no_client_could_be_a_user_of_coreflux(place: Workplace) -> None:
    place.configure(("reload_seconds: 0", COREFLUX))
    (fault,) = faults(place)
    assert fault.startswith("broker.yaml:7:86: warning: no authentication plugin that checks passwords is listed: ")
    assert "FileAuthPlugin" in fault
    place.configure(("reload_seconds: 0", COREFLUX), (ANONYMOUS, ANONYMOUS + CHECKS_PASSWORDS))
    assert faults(place) == []
