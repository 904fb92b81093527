"""A broker's configuration as amqtt reads it: listeners and plugin classes. Main thread, before the start."""

import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

import dacite
from amqtt.broker import Broker
from amqtt.contexts import BrokerConfig, ListenerConfig, ListenerType
from amqtt.plugins.authentication import AnonymousAuthPlugin
from amqtt.plugins.base import BaseAuthPlugin, BasePlugin
from amqtt.utils import import_string

from amqtt_rest_bridge.addresses import in_url, why_not_bound
from amqtt_rest_bridge.broker import amqtt_broker
from amqtt_rest_bridge.errors import BridgeError, ConfigurationError, HintedError, on_one_line, reason
from amqtt_rest_bridge.settings import yaml_type_name
from amqtt_rest_bridge.spelling import did_you_mean, question

ANONYMOUS: Final = "amqtt.plugins.authentication.AnonymousAuthPlugin"
_OFTEN_USED: Final = (
    ANONYMOUS,
    "amqtt.plugins.authentication.FileAuthPlugin",
    "amqtt.plugins.topic_checking.TopicAccessControlListPlugin",
    "amqtt.plugins.sys.broker.BrokerSysPlugin",
    "amqtt_rest_bridge.plugin.RestBridgePlugin",
    "template_api.plugin.TemplateApiPlugin",
)
_HIGHEST_PORT: Final = 65_535
_HAS_PORT: Final = re.compile(r"(?:^\d+|:[^:\]]+)$")


class UnusableConfigurationError(ConfigurationError):
    """amqtt cannot use a configuration, and why. `keys` lead to the faulty value, as far as amqtt names it."""

    def __init__(self, keys: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.keys = keys


class UnusablePluginError(HintedError):
    """A plugin's class cannot be used, and why; `hint` names a similar class."""


def broker_config(values: Mapping[str, Any]) -> BrokerConfig:
    """Return amqtt's form of the values of a configuration, a new object each time; reads certificates.

    Raises:
        UnusableConfigurationError: It cannot use them.
    """
    _check_types(values.get("listeners"))
    try:
        config = BrokerConfig.from_dict(dict(values))
    except dacite.UnexpectedDataError as error:
        keys = sorted(map(str, error.keys))
        known = [field.name for kind in (BrokerConfig, ListenerConfig) for field in fields(kind)]
        is_worker = "group" in keys  # the one setting that each worker has to have
        hint = "a worker's file? it runs with rest-bridge worker -c" if is_worker else did_you_mean(keys[0], known)
        message = f"unknown key {', '.join(keys)}" + (f" ({hint})" if hint else "")
        raise UnusableConfigurationError((keys[0],), message) from error
    except dacite.WrongTypeError as error:  # without the value, which may be a password
        place = str(error.field_path)
        wanted, given = yaml_type_name(error.field_type), yaml_type_name(type(error.value))
        message = f"wrong value type for {place}: must be {wanted}, not {given}"
        raise UnusableConfigurationError(tuple(place.split(".")), message) from error
    except Exception as error:  # whatever amqtt raises
        message = "no listener is named default" if isinstance(error, KeyError) else on_one_line(reason(error), 200)
        raise UnusableConfigurationError(("listeners",), message) from error
    for name, listener in config.listeners.items():
        if listener.type is ListenerType.EXTERNAL or listener.bind is None:
            continue
        what = f"bind {listener.bind}"
        try:
            if not _HAS_PORT.search(listener.bind):
                raise ValueError("it has no port; write HOST:PORT, as in 127.0.0.1:1883")  # noqa: TRY301  # as below
            if not 0 <= address_of(listener)[1] <= _HIGHEST_PORT:
                raise ValueError(f"a port is a number from 0 to {_HIGHEST_PORT}")  # noqa: TRY301  # one message
            if listener.ssl:
                what = f"ssl with certfile {listener.certfile} and keyfile {listener.keyfile}"
                amqtt_broker.load_certificate(listener)
        except Exception as error:  # ssl's and amqtt's own
            message = f"listener {name}: {what} cannot be used: {reason(error)}"
            raise UnusableConfigurationError(("listeners", name, what.split()[0]), message) from error
    return config


def _check_types(listeners: Any) -> None:
    """Raise `UnusableConfigurationError` for a faulty listener that amqtt refuses without its name."""
    for name, listener in listeners.items() if isinstance(listeners, Mapping) else ():
        if not isinstance(name, str):
            message = f"the name of listener {name} must be text, not {yaml_type_name(type(name))}: write it in quotes"
            raise UnusableConfigurationError(("listeners", str(name)), message)
        if not isinstance(listener, Mapping):
            message = f"listener {name}: must be a mapping (type, bind), not {yaml_type_name(type(listener))}"
            raise UnusableConfigurationError(("listeners", name), message)
        kind = listener.get("type")
        if isinstance(kind, str) and kind not in set(ListenerType):
            message = f'listener {name}: type must be tcp or ws, not "{kind}"'
            raise UnusableConfigurationError(("listeners", name, "type"), message)


def import_plugin(path: str) -> type[Any]:
    """Import a plugin's class, `module.Class`, as amqtt does; runs its module's code.

    Raises:
        UnusablePluginError: It cannot be imported, or is not a plugin.
    """
    try:
        kind = import_string(path)
    except Exception as error:  # a plugin's module may raise anything; it becomes a fault
        hint = did_you_mean(path, _OFTEN_USED)
        hint = None if hint == question(path) else hint
        raise UnusablePluginError(f"plugin {path} cannot be imported: {reason(error)}", hint) from error
    if not (isinstance(kind, type) and issubclass(kind, BasePlugin)):
        raise UnusablePluginError(f"plugin {path} is not a subclass of amqtt's BasePlugin")
    if not is_dataclass(kind.Config):
        raise UnusablePluginError(f"plugin {path}: its Config is not a dataclass")
    return kind


def authenticates(kind: type[Any]) -> bool:
    """Return whether a plugin decides which clients may connect; without any such plugin none may."""
    return issubclass(kind, BaseAuthPlugin)


def knows_users(kind: type[Any]) -> bool:
    """Return whether a client that this plugin accepts is who it says."""
    return authenticates(kind) and not issubclass(kind, AnonymousAuthPlugin)


class CannotListenError(BridgeError):
    """A listener's address cannot be bound; the message says which listener, which address and why."""

    def __init__(self, name: str, host: str | None, port: int, error: OSError) -> None:
        why = why_not_bound(error, port, "bind")
        super().__init__(f"listener {name} cannot listen on {in_url(host or '*')}:{port}: {why}")


def probe(listeners: Mapping[str, ListenerConfig]) -> None:
    """Bind every address for a moment, as asyncio will.

    Raises:
        CannotListenError: One of them is taken, or none of this machine's.
    """
    for name, listener in listeners.items():
        if listener.type is ListenerType.EXTERNAL or listener.bind is None:
            continue
        host, port = address_of(listener)
        try:
            for sock, address in _sockets(host, port):
                with sock:
                    sock.bind(address)
        except OSError as error:
            raise CannotListenError(name, host, port, error) from error


def address_of(listener: ListenerConfig) -> tuple[str | None, int]:
    """Return host (None: all addresses; IPv6 without brackets) and port of a listener that has `bind`.

    Raises:
        ValueError: The port is not a number.
    """
    host, port = amqtt_broker.split_address(listener)
    return amqtt_broker.bare_address(host), port


def bound_addresses(broker: Broker) -> list[str]:
    """Return `host:port (name)` of every bound listener, with the port that was found where 0 was asked for."""
    return [
        f"{in_url(host)}:{port} ({name})"
        for name, server in amqtt_broker.servers(broker)
        for sock in getattr(server.instance, "sockets", ())
        for host, port in [sock.getsockname()[:2]]
    ]


def _sockets(host: str | None, port: int) -> Iterator[tuple[socket.socket, Any]]:
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError:  # a kernel without IPv6; asyncio passes over it as well
            continue
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        yield sock, address
