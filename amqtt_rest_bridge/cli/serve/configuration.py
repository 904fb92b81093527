"""The broker's configuration file: read it, and find what is wrong with it, plugins' settings included. Main thread."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import yaml

from amqtt_rest_bridge.broker.listeners import (
    BrokerConfig,
    ListenerConfig,
    ListenerType,
    address_of,
    certificate_fault,
)
from amqtt_rest_bridge.broker.plugin_classes import ANONYMOUS, UnusablePluginError, authenticates, import_plugin
from amqtt_rest_bridge.cli.serve.validation import InvalidValue, build
from amqtt_rest_bridge.errors import ConfigurationError, Fault, Position, Severity, reason
from amqtt_rest_bridge.spelling import did_you_mean

_HIGHEST_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration file as it was read; `root` holds the place of each key."""

    path: str
    values: dict[str, Any]
    root: yaml.MappingNode

    def fault(
        self, keys: tuple[Any, ...], message: str, hint: str | None = None, severity: Severity = Severity.ERROR
    ) -> Fault:
        """Return a fault at the value that these keys lead to, or as near to it as the file goes."""
        return Fault(self.path, self._position(keys), severity, message, hint)

    def invalid(self, keys: tuple[Any, ...], found: InvalidValue) -> Fault:
        """Return an error for a value that does not fit the dataclass found under these keys."""
        return self.fault(keys if found.key is None else (*keys, found.key), found.message, found.hint)

    def place(self, keys: tuple[Any, ...]) -> str:
        """Return `path:line:column` of what these keys lead to."""
        position = self._position(keys)
        return f"{self.path}:{position.line}:{position.column}"

    def _position(self, keys: tuple[Any, ...]) -> Position:
        node: yaml.Node | None = self.root
        mark = self.root.start_mark
        for key in keys:
            found, node = next(((name, value) for name, value in _pairs(node) if name.value == str(key)), (None, None))
            mark = found.start_mark if found is not None else mark
        return Position(mark.line + 1, mark.column + 1)


def _pairs(node: yaml.Node | None) -> Iterator[tuple[yaml.Node, yaml.Node | None]]:
    """Return keys and values of a mapping, or of the mappings and names that a list of plugins holds."""
    if isinstance(node, yaml.MappingNode):
        yield from node.value
    elif isinstance(node, yaml.SequenceNode):
        for entry in node.value:
            yield from _pairs(entry) if isinstance(entry, yaml.MappingNode) else [(entry, None)]


class _Loader(yaml.SafeLoader):
    """Refuse a repeated key in a mapping: YAML would silently drop the first of two plugins."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def read(path: Path) -> Configuration:
    """Read a configuration file.

    Raises:
        ConfigurationError: It cannot be read, is not YAML or not a mapping; the message says where.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"cannot read the configuration {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the configuration {path} is not UTF-8 text") from error
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        values: Any = None if root is None else loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}:{error.problem_mark.column + 1}"
        raise ConfigurationError(f"{path}{where}: {error.problem or reason(error)}") from error
    except (yaml.YAMLError, ValueError) as error:  # a control character; a date such as 2026-13-45
        raise ConfigurationError(f"{path}: {reason(error)}") from error
    if not isinstance(root, yaml.MappingNode):
        kind = "is empty" if values is None else f"holds {'a list' if isinstance(values, list) else 'a single value'}"
        raise ConfigurationError(
            f"{path} {kind}; a configuration is a mapping with the keys listeners and plugins (see conf/broker.yaml)"
        )
    return Configuration(str(path), values, root)


def broker_faults(configuration: Configuration) -> list[Fault]:
    """Return what is wrong with the configuration apart from its plugins."""
    values = configuration.values
    known = [*(field.name for field in fields(BrokerConfig)), "topic-check"]
    faults = [
        configuration.fault((key,), f"unknown key {key}", did_you_mean(str(key), known) or f"known: {', '.join(known)}")
        for key in values
        if key not in known
    ]
    faults += _listener_shapes(configuration)
    if not faults:
        plain = {"topic_check" if key == "topic-check" else key: value for key, value in values.items()}
        faults += [configuration.invalid((), found) for found in build(BrokerConfig, plain, (ListenerType,))[1]]
    if not faults:
        faults += _listener_contents(configuration)
    return faults


def broker_config(configuration: Configuration) -> BrokerConfig:
    """Return what amqtt makes of a configuration without faults; a new object each time."""
    return BrokerConfig.from_dict(dict(configuration.values))


def _listener_shapes(configuration: Configuration) -> Iterator[Fault]:
    """Validate each listener by itself, so that the fault can name it."""
    listeners = configuration.values.get("listeners", {"default": {}})
    if not isinstance(listeners, dict) or not listeners:
        yield configuration.fault(("listeners",), "listeners must be a mapping of names to listeners")
        return
    if "default" not in listeners:
        hint = did_you_mean(str(next(iter(listeners))), ["default"]) or "its settings are the defaults of the others"
        yield configuration.fault(("listeners",), "no listener is named default", hint)
    for name, listener in listeners.items():
        keys = ("listeners", name)
        if not isinstance(listener, dict):
            yield configuration.fault(keys, f"listener {name} must be a mapping", "for example bind: 127.0.0.1:1883")
            continue
        for found in build(ListenerConfig, listener, (ListenerType,))[1]:
            advice = "write an address and a port: 127.0.0.1:1883" if found.key == "bind" else found.hint
            yield configuration.invalid(keys, InvalidValue(found.key, f"listener {name}: {found.message}", advice))


def _listener_contents(configuration: Configuration) -> Iterator[Fault]:
    """Check addresses and certificates, including what listeners inherit from the one named default."""
    for name, listener in broker_config(configuration).listeners.items():
        if listener.type is ListenerType.EXTERNAL or listener.bind is None:
            continue
        try:
            port = address_of(listener)[1]
        except ValueError:
            port = -1
        if not 0 <= port <= _HIGHEST_PORT:
            message = f"listener {name}: {listener.bind} is not an address and port"
            yield configuration.fault(("listeners", name, "bind"), message, "for example 127.0.0.1:1883")
        if listener.ssl:
            yield from _tls_faults(configuration, name, listener)


def _tls_faults(configuration: Configuration, name: str, listener: ListenerConfig) -> Iterator[Fault]:
    keys = ("listeners", name, "ssl")
    if listener.certfile is None or listener.keyfile is None:
        yield configuration.fault(keys, f"listener {name}: ssl needs certfile and keyfile")
        return
    if unusable := certificate_fault(listener):
        message = f"listener {name}: certfile {listener.certfile} and keyfile {listener.keyfile} cannot be used"
        yield configuration.fault(keys, f"{message}: {unusable}")


@dataclass(frozen=True, slots=True)
class ListedPlugin:
    """A plugin of the configuration.

    `settings` is an object of its class `Config`, made of the values in `given` but for those in `invalid`.
    """

    keys: tuple[str, ...]
    settings: Any
    given: frozenset[str]
    invalid: frozenset[str]

    def keys_of(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the keys that lead to the first of some settings that is given, or to the plugin."""
        return (*self.keys, *[name for name in names if name in self.given][:1])


def listed_plugins(configuration: Configuration) -> tuple[list[ListedPlugin], list[Fault]]:
    """Import all plugins that the configuration lists, and validate their settings.

    Returns:
        Those whose settings could be built, and all settings that do not fit; a warning when no client can connect.
    """
    plugins: list[ListedPlugin] = []
    kinds: list[type[Any]] = []
    are_known = True
    faults: list[Fault] = []
    for path, settings in _entries(configuration.values.get("plugins")):
        keys = ("plugins", path)
        try:
            kind = import_plugin(path)
        except UnusablePluginError as unusable:
            faults.append(configuration.fault(keys, str(unusable), unusable.hint))
            are_known = False
            continue
        kinds.append(kind)
        if not isinstance(settings, dict):
            hint = "write them as name: value, indented below it"
            faults.append(configuration.fault(keys, f"the settings of {path} must be a mapping", hint))
            continue
        built, invalid = build(kind.Config, settings)
        faults += [configuration.invalid(keys, found) for found in invalid]
        if built is not None:
            wrong = frozenset(str(found.key) for found in invalid if found.key is not None)
            plugins.append(ListedPlugin(keys, built, frozenset(map(str, settings)), wrong))
    are_listed = configuration.values.get("plugins") is not None
    if are_listed and are_known and not any(map(authenticates, kinds)):
        message = "no authentication plugin is listed: no client can connect"
        hint = f"add {ANONYMOUS}, or one that checks passwords"
        faults.append(configuration.fault(("plugins",), message, hint, Severity.WARNING))
    return plugins, faults


def setting_faults(configuration: Configuration, plugin: ListedPlugin) -> list[Fault]:
    """Return what a plugin finds wrong with its settings beyond their types.

    A plugin whose class `Config` has a method `setting_faults` is asked: it returns pairs of the names of settings and
    what is wrong with them. What is about a setting that does not fit its type is left out.
    """
    find = getattr(plugin.settings, "setting_faults", None)
    if not callable(find):
        return []
    try:
        found = [(tuple(names), str(message)) for names, message in find()]
    except Exception as error:  # noqa: BLE001  # a plugin's own check may raise anything; it becomes a fault
        return [configuration.fault(plugin.keys, f"{plugin.keys[-1]} cannot check its settings: {reason(error)}")]
    return [
        configuration.fault(plugin.keys_of(names), message)
        for names, message in found
        if plugin.invalid.isdisjoint(names)
    ]


def place_of(configuration: Configuration, plugin: ListedPlugin, names: tuple[str, ...]) -> str:
    """Return `path:line:column` of the first of some settings that is given, or of the plugin."""
    return configuration.place(plugin.keys_of(names))


def _entries(plugins: Any) -> Iterator[tuple[str, Any]]:
    """Return paths and settings, whether they are written as a mapping or as a list of names and mappings.

    Anything else is a fault of the configuration as a whole.
    """
    for entry in plugins if isinstance(plugins, list) else [plugins]:
        if isinstance(entry, str) and isinstance(plugins, list):
            yield entry, {}
        elif isinstance(entry, dict):
            for path, settings in entry.items():
                yield str(path), settings if settings is not None else {}
