"""The plugins of a configuration: their classes imported and their settings fitted, as amqtt would. Main thread."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from typing import Any, Final

from amqtt.plugins.base import BaseAuthPlugin, BasePlugin

from amqtt_rest_bridge.cli.serve.configuration import Configuration
from amqtt_rest_bridge.cli.serve.validation import fit
from amqtt_rest_bridge.errors import Fault, reason
from amqtt_rest_bridge.language.report import did_you_mean

_ANONYMOUS: Final = "amqtt.plugins.authentication.AnonymousAuthPlugin"
_OFTEN_USED: Final = (
    _ANONYMOUS,
    "amqtt.plugins.authentication.FileAuthPlugin",
    "amqtt.plugins.topic_checking.TopicAccessControlListPlugin",
    "amqtt.plugins.sys.broker.BrokerSysPlugin",
    "amqtt_rest_bridge.plugin.RestBridgePlugin",
    "template_api.plugin.TemplateApiPlugin",
)


class _UnusableError(Exception):
    """A plugin's class cannot be used; the message says why. Never leaves this module."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class ListedPlugin:
    """A plugin of the configuration; `settings` is an object of its class `Config`."""

    keys: tuple[str, ...]
    kind: type[Any]
    settings: Any


def listed_plugins(configuration: Configuration) -> tuple[list[ListedPlugin], list[Fault]]:
    """Import and fit all plugins that the configuration lists.

    Returns:
        Those that amqtt can construct, and what is wrong with the others; a warning when nobody lets clients in.
    """
    plugins: list[ListedPlugin] = []
    faults: list[Fault] = []
    for path, settings in _entries(configuration.values.get("plugins")):
        keys = ("plugins", path)
        try:
            kind = _import(path)
        except _UnusableError as unusable:
            faults.append(configuration.fault(keys, str(unusable), unusable.hint))
            continue
        if not isinstance(settings, dict):
            hint = "write them as name: value, indented below it"
            faults.append(configuration.fault(keys, f"the settings of {path} are no mapping", hint))
            continue
        fitted, misfits = fit(kind.Config, settings)
        faults += [configuration.misfit(keys, misfit) for misfit in misfits]
        if not misfits:
            plugins.append(ListedPlugin(keys, kind, fitted))
    if configuration.values.get("plugins") is not None and not faults:
        faults += _nobody_can_connect(configuration, plugins)
    return plugins, faults


def _entries(plugins: Any) -> Iterator[tuple[str, Any]]:
    """Give paths and settings, whether they are written as a mapping or as a list of names and mappings.

    Anything else is a fault of the configuration as a whole.
    """
    for entry in plugins if isinstance(plugins, list) else [plugins]:
        if isinstance(entry, str) and isinstance(plugins, list):
            yield entry, {}
        elif isinstance(entry, dict):
            for path, settings in entry.items():
                yield str(path), settings if settings is not None else {}


def _import(path: str) -> type[Any]:
    """Import a plugin's class.

    Raises:
        _UnusableError: It cannot be imported, or is no plugin.
    """
    module_name, _, class_name = path.rpartition(".")
    if not module_name:
        raise _UnusableError(f"plugin {path} is no module.Class", did_you_mean(path, _OFTEN_USED))
    try:
        module = import_module(module_name)
    except Exception as error:  # a plugin's module may raise anything; it becomes a fault
        raise _UnusableError(f"plugin {path} cannot be imported: {reason(error)}", _meant(path)) from error
    kind = getattr(module, class_name, None)
    if kind is None:
        classes = [name for name, value in vars(module).items() if inspect.isclass(value)]
        message = f"plugin {path}: {module_name} has no class {class_name}"
        raise _UnusableError(message, did_you_mean(class_name, classes))
    if not (inspect.isclass(kind) and issubclass(kind, BasePlugin)):
        raise _UnusableError(f"plugin {path} is no subclass of amqtt's BasePlugin")
    if not is_dataclass(kind.Config):
        raise _UnusableError(f"plugin {path}: its Config is no dataclass")
    return kind


def _meant(path: str) -> str | None:
    hint = did_you_mean(path, _OFTEN_USED)
    return None if hint == f"did you mean {path}?" else hint


def _nobody_can_connect(configuration: Configuration, plugins: list[ListedPlugin]) -> Iterator[Fault]:
    if not any(issubclass(plugin.kind, BaseAuthPlugin) for plugin in plugins):
        message = "no authentication plugin is listed: no client can connect"
        yield configuration.warning(("plugins",), message, f"add {_ANONYMOUS}, or one that checks passwords")
