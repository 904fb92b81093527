"""The classes of plugins that a configuration names, imported as amqtt imports them. Main thread, before the start."""

import inspect
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any, Final

from amqtt.plugins.base import BaseAuthPlugin, BasePlugin

from amqtt_rest_bridge.errors import HintedError, reason
from amqtt_rest_bridge.spelling import did_you_mean

ANONYMOUS: Final = "amqtt.plugins.authentication.AnonymousAuthPlugin"
_OFTEN_USED: Final = (
    ANONYMOUS,
    "amqtt.plugins.authentication.FileAuthPlugin",
    "amqtt.plugins.topic_checking.TopicAccessControlListPlugin",
    "amqtt.plugins.sys.broker.BrokerSysPlugin",
    "amqtt_rest_bridge.plugin.RestBridgePlugin",
    "template_api.plugin.TemplateApiPlugin",
)


class UnusablePluginError(HintedError):
    """A plugin's class cannot be used; the message says why, `hint` what was meant."""


def import_plugin(path: str) -> type[Any]:
    """Import a plugin's class; runs its module's code.

    Args:
        path: `module.Class`.

    Raises:
        UnusablePluginError: It cannot be imported, or amqtt would refuse it.
    """
    module_name, _, class_name = path.rpartition(".")
    if not module_name:
        raise UnusablePluginError(f"plugin {path} is not a path module.Class", did_you_mean(path, _OFTEN_USED))
    try:
        module = import_module(module_name)
    except Exception as error:  # a plugin's module may raise anything; it becomes a fault
        hint = did_you_mean(path, _OFTEN_USED)
        hint = None if hint == f"did you mean {path}?" else hint
        raise UnusablePluginError(f"plugin {path} cannot be imported: {reason(error)}", hint) from error
    kind = getattr(module, class_name, None)
    if kind is None:
        classes = [name for name, value in vars(module).items() if inspect.isclass(value)]
        message = f"plugin {path}: {module_name} has no class {class_name}"
        raise UnusablePluginError(message, did_you_mean(class_name, classes))
    if not (inspect.isclass(kind) and issubclass(kind, BasePlugin)):
        raise UnusablePluginError(f"plugin {path} is not a subclass of amqtt's BasePlugin")
    if not is_dataclass(kind.Config):
        raise UnusablePluginError(f"plugin {path}: its Config is not a dataclass")
    return kind


def authenticates(kind: type[Any]) -> bool:
    """Return whether a plugin decides which clients may connect; without any such plugin none may."""
    return issubclass(kind, BaseAuthPlugin)
