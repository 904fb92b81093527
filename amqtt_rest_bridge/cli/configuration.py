"""Configuration files of brokers and workers: they are read, and their settings are checked. Main thread.

`serve` and `worker` call these functions from top to bottom, and report the faults or run with the settings:

- `read` reads a file;
- `broker_faults` returns the first key that amqtt refuses;
- `listed_plugins` (of a broker) and `validate` (of a worker) make the settings, with a fault for each that does not
  fit. dacite builds them, as in amqtt, so nothing is accepted that amqtt would refuse;
- `check_start` checks files, folders and routes that the settings name.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import dacite
import yaml

from amqtt_rest_bridge.cli.yaml_files import read_yaml
from amqtt_rest_bridge.errors import ConfigurationError, Fault, FaultCode, Position, RouteFilesError, Severity, reason
from amqtt_rest_bridge.http.server_tls import TlsFiles
from amqtt_rest_bridge.settings import SettingFault, Settings, yaml_type_name
from amqtt_rest_bridge.spelling import Question, did_you_mean

log = logging.getLogger(__name__)

_NUMBER: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)")  # what YAML reads as a whole number unless it is quoted
_ROUTES_NEED: Final = frozenset({"routes", "secrets_dir", "spool", "server_certfile"})  # settings: to be loaded
_STRICT: Final = dacite.Config(strict=True)  # as amqtt's


@dataclass(frozen=True, slots=True)
class InvalidValue:
    """A setting that does not fit; `key` is its name, None if the values do not fit together."""

    key: str | None
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration file as it was read; `root` holds the place of each key."""

    path: str
    values: dict[str, Any]
    root: yaml.MappingNode

    def fault(
        self, keys: tuple[Any, ...], message: str, hint: str | None = None, severity: Severity = Severity.ERROR
    ) -> Fault:
        """Return a fault at the value that these keys lead to, or at the last of them that the file has."""
        node: yaml.Node | None = self.root
        begin = end = self.root.start_mark
        for key in keys:
            found = _find(node, str(key))
            node = None
            if found is not None:
                name, node = found
                begin, end = name.start_mark, name.end_mark
        position, behind = (Position(mark.line + 1, mark.column + 1) for mark in (begin, end))
        replacement = hint.meant if isinstance(hint, Question) else None
        return Fault(self.path, position, severity, message, hint, FaultCode.CONFIGURATION, behind, replacement)


@dataclass(frozen=True, slots=True)
class Section:
    """The settings of a plugin, or of a worker, and their place in the configuration file."""

    configuration: Configuration
    keys: tuple[str, ...]  # lead to the settings in the file
    settings: Any  # those that fit, and the defaults of the others
    given: frozenset[str] = frozenset()  # names of the settings that are set
    invalid: frozenset[str] = frozenset()  # names of those that do not fit
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # where a setting comes from that is not in the file

    def setting_faults(self) -> list[Fault]:
        """Return what is wrong with the settings beyond their types, by the method `setting_faults` of their class."""
        find = getattr(self.settings, "setting_faults", None)
        if not callable(find):
            return []
        try:
            return self.faults_of((tuple(names), str(message)) for names, message in find())
        except Exception as error:  # noqa: BLE001  # a plugin's own check may raise anything; it becomes a fault
            return [self.configuration.fault(self.keys, f"{self.keys[-1]} cannot check its settings: {reason(error)}")]

    def faults_of(self, found: Iterable[SettingFault]) -> list[Fault]:
        """Return a fault for each pair of names and message, at the first of the settings of these names that is set.

        If one of the settings is invalid, the pair is left out: the invalid setting has its own fault.
        """
        faults = []
        for names, message in found:
            if self.invalid.isdisjoint(names):
                first = [name for name in names if name in self.given][:1]
                source = self.elsewhere.get(first[0]) if first else None
                keys = (*self.keys, *(first if source is None else ()))
                faults.append(self.configuration.fault(keys, message, source and f"it is set by {source}"))
        return faults


def read(path: Path) -> Configuration:
    """Read a configuration file.

    Raises:
        ConfigurationError: It cannot be read, is not YAML or not a mapping; the message says where.
    """
    values, root = read_yaml(path)
    if not isinstance(root, yaml.MappingNode):
        kind = "is empty" if values is None else f"holds {'a list' if isinstance(values, list) else 'a single value'}"
        raise ConfigurationError(
            f"{path} {kind}; a configuration is a mapping with the keys listeners and plugins (see conf/broker.yaml)"
        )
    return Configuration(str(path), values, root)


def _find(node: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node | None] | None:
    """Return a key and its value in a mapping. If it lacks the key, search the mappings inside, the first one first.

    The search is needed since amqtt does not say which of the listeners has a wrong value.
    """
    pairs = list(_pairs(node))
    direct = (pair for pair in pairs if pair[0].value == key)
    inside = (found for _, value in pairs if (found := _find(value, key)) is not None)
    return next(direct, None) or next(inside, None)


def _pairs(node: yaml.Node | None) -> Iterator[tuple[yaml.Node, yaml.Node | None]]:
    """Yield keys and values of a mapping, or of the mappings and names in a list of plugins."""
    if isinstance(node, yaml.MappingNode):
        yield from node.value
    elif isinstance(node, yaml.SequenceNode):
        for entry in node.value:
            yield from _pairs(entry) if isinstance(entry, yaml.MappingNode) else [(entry, None)]


def broker_faults(configuration: Configuration) -> list[Fault]:
    """Return the first thing that amqtt refuses of the configuration, apart from its plugins."""
    from amqtt_rest_bridge.broker.configuration import (  # a worker has no amqtt
        UnusableConfigurationError,
        broker_config,
    )

    try:
        broker_config(configuration.values)
    except UnusableConfigurationError as error:
        return [configuration.fault(error.keys, str(error))]
    return []


def listed_plugins(configuration: Configuration) -> tuple[list[Section], list[Fault]]:
    """Import all plugins that the configuration lists, and validate their settings.

    Returns:
        The plugins whose settings could be built; and all settings that do not fit, with a warning if no client can
        connect.
    """
    from amqtt_rest_bridge.broker import configuration as of_broker

    plugins: list[Section] = []
    kinds: list[type[Any]] = []
    are_known = True
    faults: list[Fault] = []
    for path, settings in _listed_paths(configuration.values.get("plugins")):
        keys = ("plugins", path)
        try:
            kind = of_broker.import_plugin(path)
        except of_broker.UnusablePluginError as unusable:
            faults.append(configuration.fault(keys, str(unusable), unusable.hint))
            are_known = False
            continue
        kinds.append(kind)
        if not isinstance(settings, dict):
            hint = "write them as name: value, indented below it"
            faults.append(configuration.fault(keys, f"the settings of {path} must be a mapping", hint))
            continue
        section, found = validate(kind.Config, configuration, keys, settings)
        plugins += [] if section is None else [section]
        faults += found
    if are_known:
        faults += _missing_authentication(configuration, plugins, kinds)
    return plugins, faults


def _listed_paths(listed: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path and the settings of each plugin.

    The plugins are a mapping of paths to settings, or a list of paths and of such mappings. Anything else is left out:
    amqtt refuses it, see `broker_faults`.
    """
    for entry in listed if isinstance(listed, list) else [listed]:
        if isinstance(entry, str) and isinstance(listed, list):
            yield entry, {}
        elif isinstance(entry, dict):
            yield from ((str(path), {} if settings is None else settings) for path, settings in entry.items())


def _missing_authentication(
    configuration: Configuration, plugins: Iterable[Section], kinds: Sequence[type[Any]]
) -> Iterator[Fault]:
    """Yield warnings if no plugin lets clients connect, or none knows the users that `coreflux` names."""
    from amqtt_rest_bridge.broker import configuration as of_broker

    if configuration.values.get("plugins") is not None and not any(map(of_broker.authenticates, kinds)):
        message = "no authentication plugin is listed: no client can connect"
        hint = f"add {of_broker.ANONYMOUS}, or one that checks passwords"
        yield configuration.fault(("plugins",), message, hint, Severity.WARNING)
    if not any(map(of_broker.knows_users, kinds)):
        message = "no authentication plugin that checks passwords is listed: no client is one of the users of coreflux"
        hint = "add amqtt.plugins.authentication.FileAuthPlugin"
        for plugin in plugins:
            if getattr(plugin.settings, "coreflux", None) is not None:
                yield configuration.fault((*plugin.keys, "coreflux"), message, hint, Severity.WARNING)


def validate(
    kind: type[Any], configuration: Configuration, keys: tuple[str, ...], values: Mapping[Any, Any],
    elsewhere: Mapping[str, str] | None = None,
) -> tuple[Section | None, list[Fault]]:  # fmt: skip
    """Return the settings of a dataclass, None if it cannot be built, and a fault for each that does not fit.

    `elsewhere` names the source of each setting that is not in the file, such as an option.
    """
    built, wrong = build(kind, values)
    faults = [
        configuration.fault(keys if one.key is None else (*keys, one.key), one.message, one.hint) for one in wrong
    ]
    if built is None:
        return None, faults
    invalid = frozenset(str(one.key) for one in wrong if one.key is not None)
    return Section(configuration, keys, built, frozenset(map(str, values)), invalid, elsewhere or {}), faults


def build(kind: type[Any], values: Mapping[Any, Any]) -> tuple[Any, list[InvalidValue]]:
    """Build a dataclass as amqtt would, but refuse true and false for numbers.

    Args:
        kind: The dataclass; its `__post_init__` may refuse values.
        values: Its members by name.

    Returns:
        The object, made of the values that fit, None if it could not be built; and all invalid settings, whose messages
        hold no value, which may be a password.
    """
    types = get_type_hints(kind)
    members = [field.name for field in fields(kind) if field.init]
    invalid = [
        InvalidValue(key, f"unknown setting {key}", did_you_mean(str(key), members))
        for key in values
        if key not in members
    ]
    present = [name for name in members if name in values]
    invalid += [found for name in present if (found := _check_member(name, types[name], values[name]))]
    wrong = {found.key for found in invalid}
    try:
        return dacite.from_dict(kind, {key: values[key] for key in values if key not in wrong}, _STRICT), invalid
    except dacite.MissingValueError as error:
        return None, invalid if error.field_path in wrong else [*invalid, InvalidValue(None, str(error))]
    except Exception as error:  # noqa: BLE001  # a plugin's own check may raise anything; it becomes an invalid setting
        return None, [*invalid, InvalidValue(None, reason(error))]


def _check_member(name: str, hint: Any, value: Any) -> InvalidValue | None:
    """Return why a value does not fit its member, whose type is `hint`; None if it does."""
    kinds = {hint, *get_args(hint)} if get_origin(hint) in (Union, UnionType) else {hint}
    try:
        dacite.from_dict(make_dataclass("Member", [(name, hint)]), {name: value}, _STRICT)
        if not (isinstance(value, bool) and bool not in kinds and kinds & {int, float}):
            return None
        place, expected, found = name, hint, bool  # dacite takes true and false for numbers
    except dacite.WrongTypeError as error:  # it names the part of the value that does not fit
        place, expected, found = error.field_path or name, error.field_type, type(error.value)
    except Exception as error:  # noqa: BLE001  # the value is a mapping for a dataclass, which refuses it
        inner = next((kind for kind in kinds if is_dataclass(kind)), None)
        found_inside = build(inner, value)[1] if isinstance(inner, type) and isinstance(value, dict) else []
        if found_inside:
            return replace(found_inside[0], key=name, message=f"{name}: {found_inside[0].message}")
        return InvalidValue(name, f"{name}: {reason(error)}")
    if yaml_type_name(expected) == yaml_type_name(found):
        return InvalidValue(name, f"what {place} holds does not fit")
    quoted = isinstance(value, str) and int in kinds and _NUMBER.fullmatch(value)
    message = f"{place} must be {yaml_type_name(expected)}, not {yaml_type_name(found)}"
    return InvalidValue(name, message, "write a number without quotes" if quoted else None)


def check_start(section: Section) -> bool:
    """Check what valid settings name: certificate, spool and routes. Log what would keep the bridge from starting.

    What depends on an invalid setting is not checked, and no port is bound. Returns whether nothing was found.
    """
    settings: Settings = section.settings
    faults: list[SettingFault] = []
    if settings.server_certfile is not None and settings.server_keyfile is not None:
        try:
            TlsFiles(settings.server_certfile, settings.server_keyfile).check_dates()
        except ConfigurationError as error:
            faults.append((("server_certfile", "server_keyfile"), str(error)))
    if settings.spool is not None and not Path(settings.spool).absolute().parent.is_dir():
        faults.append((("spool",), f"the folder of the setting spool does not exist: {settings.spool}"))
    lines: list[str] = []
    are_loaded = True
    if settings.routes and section.invalid.isdisjoint(_ROUTES_NEED):
        try:
            lines = _faults_of_routes(settings)
        except ConfigurationError as error:
            faults.append((("routes",), str(error)))
        except RouteFilesError:  # each has been logged
            are_loaded = False
    lines = [*map(str, section.faults_of(faults)), *lines]
    for line in lines:
        log.error("%s", line)
    return are_loaded and not lines


def _faults_of_routes(settings: Settings) -> list[str]:
    """Return what is wrong with the routes besides the faults of their files, which are logged and raised."""
    from amqtt_rest_bridge.lot import loader, sources  # a worker that runs loads in a process of its own
    from amqtt_rest_bridge.lot.evaluation import Environment
    from amqtt_rest_bridge.reload import routes_that_cannot_run, usable_routes  # with pycurl, which no broker needs

    # A size that could not be read is still a string. It is reported elsewhere: the default does here.
    sizes = [name for name in ("max_body_bytes", "max_response_bytes") if isinstance(getattr(settings, name), str)]
    settings = replace(settings, **{name: getattr(Settings, name) for name in sizes})
    texts = sources.read(settings.route_paths, settings.optional_paths)
    loaded = loader.load(texts, Environment(os.environ, Path(settings.secrets_dir)))
    return [
        f"{route.path}:{route.position.line}:{route.position.column}: error: route {route.name}: {error}"
        for route, error in routes_that_cannot_run(usable_routes(loaded, settings), settings)
    ]
