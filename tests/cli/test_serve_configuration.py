"""What can be wrong with a configuration file, and where: the checks of `rest-bridge serve` without its process."""

import sys
from pathlib import Path

import pytest

from amqtt_rest_bridge.cli import configuration
from amqtt_rest_bridge.errors import ConfigurationError
from tests.support.commands import ANONYMOUS, BRIDGE, Workplace


def faults(_place: Workplace) -> list[str]:
    """Return all faults of broker.yaml as they are printed, each with its hint on one line."""
    read = configuration.read(Path("broker.yaml"))
    found = [*configuration.broker_faults(read), *configuration.listed_plugins(read)[1]]
    return [str(fault).replace("\n", " ") for fault in found]


def test_configuration_without_faults_has_none(place: Workplace) -> None:
    assert faults(place) == []


MALFORMED = [
    pytest.param("a: b: c\n", "broker.yaml:1:5: no name ends here", id="no-yaml"),
    pytest.param("[" * 1000, "broker.yaml is nested too deeply", id="nested"),
    pytest.param("", "broker.yaml is empty; a configuration is a mapping", id="empty"),
    pytest.param("- a\n", "broker.yaml holds a list; a configuration is a mapping", id="list"),
    pytest.param("a\n", "broker.yaml holds a single value; a configuration is a mapping", id="single-value"),
]


@pytest.mark.parametrize(("text", "message"), MALFORMED)
def test_malformed_file_is_refused_with_its_place(place: Workplace, text: str, message: str) -> None:
    place.write("broker.yaml", text)
    with pytest.raises(ConfigurationError) as caught:
        configuration.read(Path("broker.yaml"))
    assert str(caught.value).startswith(message)


def test_file_that_is_not_text_is_refused(place: Workplace) -> None:
    (place.folder / "broker.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigurationError, match=r"^cannot read broker.yaml: it is not UTF-8 text$"):
        configuration.read(Path("broker.yaml"))


def test_file_that_cannot_be_read_is_refused(place: Workplace) -> None:
    with pytest.raises(ConfigurationError, match=r"^cannot read .*: Is a directory$"):
        configuration.read(place.folder)


def test_merged_mappings_are_not_a_repetition(place: Workplace) -> None:
    place.configure(("plugins:", "  other: {<<: {type: tcp, bind: '127.0.0.1:0'}, bind: '127.0.0.1:0'}\nplugins:"))
    assert faults(place) == []


KEYS = [
    pytest.param("plugin: {}\n", "1:1: error: unknown key plugin (did you mean plugins?)", id="misspelt"),
    pytest.param("b: 1\n", "1:1: error: unknown key b", id="like-no-other"),
    pytest.param("group: a\n", "1:1: error: unknown key group (a worker's file? it runs with rest-b", id="of-a-worker"),
    pytest.param("plugins: 3\n", "1:1: error: wrong value type for plugins: must be a mapping or a list", id="plugins"),
    pytest.param("plugins: [3]\n", "1:1: error: wrong value type for plugins: must be ", id="plugin-number"),
    pytest.param(
        "timeout_disconnect_delay: a\n",
        "1:1: error: wrong value type for timeout_disconnect_delay: must be a whole number",
        id="number",
    ),
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
        "4:5: error: wrong value type for listeners.bind: must be text or null, not",
        id="number",
    ),
    pytest.param("bind: x:y", "4:5: error: listener default: bind x:y cannot be used: ", id="no-port"),
    pytest.param(
        "bind: 127.0.0.1",
        "4:5: error: listener default: bind 127.0.0.1 cannot be used: it has no port; write HOST",
        id="host",
    ),
    pytest.param("bind: '[::1]'", "4:5: error: listener default: bind [::1] cannot be used: it has no port", id="ipv6"),
    pytest.param("bind: ':65536'", "4:5: error: listener default: bind :65536 cannot be used: a port", id="too-high"),
    pytest.param("bnd: x", "4:5: error: unknown key bnd (did you mean bind?)", id="unknown-setting"),
    pytest.param("ssl: true", "4:5: error: listener default: ssl with certfile None and", id="tls-without-files"),
    pytest.param("certfile: x", "1:1: error: If specifying the 'certfile' or 'keyfile', both are", id="no-key"),
    pytest.param("certfile: x\n    keyfile: y", "1:1: error: 'certfile' does not exist : x", id="no-such-file"),
    pytest.param(
        "ssl: true\n    certfile: routes.lot\n    keyfile: routes.lot",
        "4:5: error: listener default: ssl with certfile routes.lot and keyfile routes.lot cannot be used: [SSL]",
        id="no-certificate",
    ),
]


@pytest.mark.parametrize(("setting", "fault"), LISTENERS)
def test_unusable_listener_is_named(place: Workplace, setting: str, fault: str) -> None:
    place.configure(("bind: 127.0.0.1:0", setting))
    (found,) = faults(place)
    assert found.startswith(f"broker.yaml:{fault}")


SHAPES = [
    pytest.param("type: tcp", "type: tpc", "3:5: error: listener default: type must be tcp or ws, not", id="type"),
    pytest.param("default:", "web:", "1:1: error: no listener is named default", id="no-default"),
    pytest.param(
        "listeners:",
        "listeners: 3\nauth:",
        "1:1: error: wrong value type for listeners: must be a mapping, not",
        id="number",
    ),
    pytest.param("listeners:", "listeners: {}\nauth:", "1:1: error: no listener is named default", id="empty"),
    pytest.param(
        "  default:",
        "  x: 3\n  default:",
        "2:3: error: listener x: must be a mapping (type, bind), not a whole number",
        id="one-number",
    ),
    pytest.param(
        "  default:",
        "  5: {}\n  default:",
        "2:3: error: the name of listener 5 must be text, not a whole number: write",
        id="name-number",
    ),
    pytest.param(
        "  default:",
        "  x:\n  default:",
        "2:3: error: listener x: must be a mapping (type, bind), not null",
        id="one-null",
    ),
]


@pytest.mark.filterwarnings("ignore:'auth' and 'topic-check' are deprecated:DeprecationWarning")
@pytest.mark.parametrize(("old", "new", "fault"), SHAPES)
def test_listeners_of_a_wrong_shape_are_refused(place: Workplace, old: str, new: str, fault: str) -> None:
    place.configure((old, new))
    assert faults(place)[0].startswith(f"broker.yaml:{fault}")


def test_listener_that_others_bring_connections_to_needs_no_address(place: Workplace) -> None:
    place.configure(("type: tcp", "type: external"), ("bind: 127.0.0.1:0", "bind: nowhere:x"))
    assert faults(place) == []


PLUGINS = [
    pytest.param("nowhere.P: {}", "plugin nowhere.P cannot be imported: No module named 'nowhere'", id="no-module"),
    pytest.param("Plugin: {}", "plugin Plugin cannot be imported: Plugin doesn't look like a module path", id="no-dot"),
    pytest.param(
        "amqtt_rest_bridge.plugin.RestBrigdePlugin: {}",
        "plugin amqtt_rest_bridge.plugin.RestBrigdePlugin cannot be imported: "
        'Module "amqtt_rest_bridge.plugin" does not define a "RestBrigdePlugin" attribute/class '
        "hint: did you mean amqtt_rest_bridge.plugin.RestBridgePlugin?",
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


COREFLUX = "reload_seconds: 0, coreflux: {users: [editor], routes: live}"
CHECKS_PASSWORDS = "  amqtt.plugins.authentication.FileAuthPlugin: {password_file: users}\n"


def test_warning_is_given_when_no_client_could_be_a_user_of_coreflux(place: Workplace) -> None:
    place.configure(("reload_seconds: 0", COREFLUX))
    (fault,) = faults(place)
    assert fault.startswith("broker.yaml:7:86: warning: no authentication plugin that checks passwords is listed: ")
    assert "FileAuthPlugin" in fault
    place.configure(("reload_seconds: 0", COREFLUX), (ANONYMOUS, ANONYMOUS + CHECKS_PASSWORDS))
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


def test_missing_authentication_is_reported_beside_a_setting_that_does_not_fit(place: Workplace) -> None:
    place.configure((ANONYMOUS, ""), ("processes: 0", "processes: many"))
    assert [fault.partition(": ")[2][:40] for fault in faults(place)] == [
        "error: processes must be a whole number,",
        "warning: no authentication plugin is lis",
    ]
