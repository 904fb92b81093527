"""The settings of the plugin and of a worker: one row each, in the class that is built from a configuration file.

A row has name, type, default, meaning, example and bounds of a setting, and whether it is secret. The checks of a value
and their messages, the options and variables of `rest-bridge worker`, and the tables of the reference come from these
rows. amqtt builds `Settings` from its configuration, `rest-bridge worker` builds `WorkerSettings`. Pure, except that
secrets are read from files and the environment.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Final, Union, get_args, get_origin

from amqtt_rest_bridge.addresses import is_loopback
from amqtt_rest_bridge.errors import ConfigurationError, Fault, Severity
from amqtt_rest_bridge.lot.model import Capture, OverloadPolicy, Route
from amqtt_rest_bridge.sizes import FORM, read_size, size_text
from amqtt_rest_bridge.system import regular_file

PASSWORD_VARIABLE: Final = "REST_BRIDGE_BROKER_PASSWORD"  # noqa: S105  # the name of a variable
ADMIN_TOKEN_VARIABLE: Final = "REST_BRIDGE_ADMIN_TOKEN"  # noqa: S105  # as above
ADMIN_VARIABLE: Final = "REST_BRIDGE_ADMIN"
"""The admin port that commands ask; a worker has no setting of the name."""
WRITE_VALUE: Final = "write the value itself, or have a program such as envsubst put it in before the start"
_LARGEST_MESSAGE: Final = 268_435_455  # MQTT 3.1.1 section 2.2.3
_HIGHEST_PORT: Final = 65_535
_TOKEN: Final = re.compile(r"[\x21-\x7e]{16,}")
_UNFILLED: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)[^}]*\}")
_UNFILLED_SECRET: Final = re.compile(r"\$[A-Z_][A-Z0-9_]*")  # a secret may begin with $, but is not a name after it
_GROUP: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_YAML_TYPES: Final[Mapping[Any, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
    NoneType: "null",
}


def yaml_type_name(kind: Any) -> str:
    """Return the name of a type for people who write YAML: `a whole number or null`."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(yaml_type_name, arguments)))
    if origin is list and arguments:
        return f"a list of {yaml_type_name(arguments[0])}"
    if is_dataclass(origin):
        return "a mapping"
    return _YAML_TYPES.get(origin, getattr(origin, "__name__", str(origin)))


SettingFault = tuple[tuple[str, ...], str]
"""The names of the settings that a fault is about, and what is wrong with them."""


@dataclass(frozen=True, slots=True)
class Row:
    """What describes a setting beside its name, type and default.

    `low` and `high` bound a number. A size is bytes, or a text such as `64MiB`. A secret is never shown, and is no
    option of a command, since other users of the machine can see those. A mapping can be set only in the file.
    `above_high` is the advice for a number above `high`. `worker_instead` is the advice to a worker, which does not
    have the setting; None if it has it.
    """

    meaning: str
    example: str
    low: int = 0
    high: int | None = None
    is_size: bool = False
    is_required: bool = False
    is_secret: bool = False
    is_mapping: bool = False
    above_high: str = ""
    worker_instead: str | None = None

    def fault(self, name: str, value: Any) -> str | None:
        """Return what is wrong with a value of the right type, None if nothing is."""
        texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
        if any("\0" in text for text in texts):
            return f"the setting {name} holds NUL, which no file, host or password has"
        find = _unfilled_secret if self.is_secret else unfilled_variable
        if unfilled := next(filter(None, map(find, texts)), None):
            instead = WRITE_VALUE
            if self.is_secret:
                instead = f"name a file of secrets_dir in {name}_secret, or set the variable REST_BRIDGE_{name.upper()}"
            return f"the setting {name} holds {unfilled}, which nothing replaces here: {instead}"
        if self.high is None or value is None:
            return None
        if isinstance(value, bool):  # which Python counts as 0 and 1
            return f"the setting {name} is {str(value).lower()}; write a number"
        if isinstance(value, str):
            return f'the setting {name} is "{value}", which is not a size; {FORM}'
        if self.low <= value <= self.high:
            return None
        size = f" bytes ({size_text(self.high)})" if self.is_size and self.high % 1024 == 0 else ""
        instead = f"; {self.above_high}" if self.above_high and value > self.high else ""
        return f"the setting {name} is {value}; allowed is {self.low} to {self.high}{size}{instead}"


def _setting(default: Any, meaning: str, example: str, **rest: Any) -> Any:
    row = Row(meaning, example, **rest)
    return field(default=default, repr=not row.is_secret, metadata={"row": row})


def unfilled_variable(text: str) -> str | None:
    """Return the first `${NAME}` in a text, None if there is none. Of `${NAME:-secret}` only `${NAME}` is returned."""
    found = _UNFILLED.search(text)
    return None if found is None else f"${{{found[1]}}}"


def _unfilled_secret(text: str) -> str | None:
    """Return the first `${NAME}` in a secret, or `$NAME` if that is the whole secret; None without either."""
    return text if _UNFILLED_SECRET.fullmatch(text) else unfilled_variable(text)


def row_of(setting: "Field[Any]") -> Row:
    """Return the row of a field of `Settings` or `WorkerSettings`."""
    row: Row = setting.metadata["row"]
    return row


def variable_of(setting: "Field[Any]") -> str:
    """Return the environment variable that sets a worker's setting."""
    return f"REST_BRIDGE_{setting.name.upper()}"


@dataclass
class Coreflux:
    """Who may add and remove routes by MQTT, and the folder that keeps these routes; see `tools.commands`."""

    users: list[str]
    routes: str


@dataclass
class Settings:
    """The plugin's settings in the broker's configuration; names that end in `_bytes` are sizes."""

    is_mqtt_5: ClassVar[bool] = False
    """Whether the broker acknowledges what requests of server mode publish, and messages have properties."""

    routes: str | list[str] | None = _setting(  # noqa: RUF009  # makes a field, not a list
        None,
        "file, folder, or list of them; folders are searched for `*.lot` and `*.lotnb`",
        "conf/routes",
        is_required=True,
    )
    server_host: str = _setting(
        "127.0.0.1", "address that server mode listens on; `0.0.0.0` opens it to the network", "192.168.1.10"
    )
    server_certfile: str | None = _setting(
        None, "PEM file; with `server_keyfile`, server mode speaks HTTPS", "/etc/bridge/server.pem"
    )
    server_keyfile: str | None = _setting(None, "PEM file of its key, not encrypted", "/etc/bridge/server.key")
    secrets_dir: str = _setting("/run/secrets", '`GET SECRET "X"` reads the file X there', "secrets")
    max_body_bytes: int | str = _setting(
        262_144,
        "server mode: larger request bodies get 413; client mode: larger filled bodies fail with `payload_too_large`",
        "1MiB",
        high=_LARGEST_MESSAGE,
        is_size=True,
    )
    max_message_bytes: int | str = _setting(
        4 << 20,
        "client mode: larger messages fail with `payload_too_large`; read events and replies do without them",
        "16MiB",
        low=1,
        high=_LARGEST_MESSAGE,
        is_size=True,
    )
    max_response_bytes: int | str = _setting(
        262_144,
        "client mode: larger responses fail with `response_too_large`",
        "1MiB",
        high=_LARGEST_MESSAGE,
        is_size=True,
    )
    queue_bytes: int | str = _setting(
        256 << 20,
        "client mode: payloads that all routes together may have queued and in flight; in the plugin also what waits "
        "in the broker process while the bridge is away",
        "1GiB",
        low=1,
        high=1 << 40,
        is_size=True,
    )
    processes: int = _setting(
        1,
        "1 = the bridge is a process beside the broker; 0 = it runs in the broker process, for tests and small devices",
        "0",
        high=1,
        above_high="a bridge is one process: for more run workers, as many as you like (rest-bridge worker)",
    )
    workers: int = _setting(64, "client mode: requests in flight for each route, at most", "128", low=1, high=1024)
    reload_seconds: float = _setting(
        2, "look for changed route files this often; 0 = never (SIGHUP always reloads)", "10", high=86_400
    )
    status_seconds: float = _setting(30, "publish route status this often; 0 = never", "60", high=86_400)
    start_seconds: float = _setting(
        30,
        "how long the bridge may take to become ready at the start; one that dies meanwhile is started again",
        "60",
        low=1,
        high=3600,
    )
    spool: str | None = _setting(
        None,
        'SQLite file for `OVERLOAD_POLICY "lossless"`',
        "spool.db",
        worker_instead="leave it out: the broker keeps the messages of lossless routes",
    )
    access_log: str | None = _setting(
        None, "file that gets a JSON line for each HTTP request of server mode", "/var/log/bridge/access.jsonl"
    )
    openapi: bool = _setting(
        False,
        "answer `GET /openapi.json` on each port of server mode, to any caller: its endpoints as OpenAPI 3.1",
        "true",
    )
    admin_host: str = _setting(
        "127.0.0.1",
        "address that the admin port listens on; any other than this machine's own needs `admin_token`",
        "192.168.1.10",
    )
    admin_port: int | None = _setting(
        None, "status page, metrics, health and live calls; null = off, which costs nothing", "9464", high=_HIGHEST_PORT
    )
    admin_token: str | None = _setting(
        None,
        "what callers of the admin port have to send; 16 or more visible ASCII characters",
        "9f86d081884c7d659a2feaa0",
        is_secret=True,
    )
    admin_token_secret: str | None = _setting(
        None,
        f"file of `secrets_dir` with the admin token; without both the environment variable `{ADMIN_TOKEN_VARIABLE}` "
        "is read",
        "admin-token",
    )
    capture: str = _setting(
        "failures",
        "what is kept of calls and requests for pages and retries, with `admin_port` or `failures`: `failures` (of "
        "each route the last 100, with message, request and response), `all` (the last 20 successes too), `none`",
        "all",
    )
    failures: str | None = _setting(
        None,
        "SQLite file in which the kept failures survive a restart; it holds the payloads of messages",
        "failures.db",
    )
    coreflux: Coreflux | None = _setting(  # noqa: RUF009  # as above
        None,
        "who may add and remove routes with Coreflux's tools: names of `users`, and as `routes` the folder that keeps "
        "what they add",
        "{users: [editor], routes: conf/live}",
        is_mapping=True,
    )

    def __post_init__(self) -> None:
        """Convert sizes that are texts to bytes; a text that is not a size stays, and `setting_faults` finds it."""
        for one in fields(self):
            value = getattr(self, one.name)
            if row_of(one).is_size and isinstance(value, str) and (size := read_size(value)) is not None:
                setattr(self, one.name, size)

    @property
    def records_runs(self) -> bool:
        """Return whether calls and requests are recorded, for an admin port or a file."""
        return self.admin_port is not None or self.failures is not None

    @property
    def route_paths(self) -> list[str]:
        """Return the configured files and folders."""
        paths = [self.routes] if isinstance(self.routes, str) else self.routes or []
        return [*paths, *self.optional_paths]

    @property
    def optional_paths(self) -> list[str]:
        """Return the configured folders that may be missing or hold no route file."""
        return [] if self.coreflux is None else [self.coreflux.routes]

    def setting_faults(self) -> Iterator[SettingFault]:
        """Yield all faults of the values: first of each value by its row, then of values that do not go together.

        If `admin_token` is not set, this also sets it from a file of `secrets_dir` or from the environment.
        """
        for one in fields(self):
            fault = row_of(one).fault(one.name, getattr(self, one.name))
            if fault is None and one.name == "admin_token_secret" and self.admin_token is None:
                try:
                    self.admin_token = read_secret(self, "admin_token", ADMIN_TOKEN_VARIABLE) or None
                except ConfigurationError as error:
                    fault = str(error)
            if fault is not None:
                yield (one.name,), fault
        if not self.server_host.strip():
            yield ("server_host",), "the setting server_host is empty; write 127.0.0.1, or 0.0.0.0 for every network"
        commands = self.coreflux
        if commands is not None and not (
            commands.routes and "\0" not in commands.routes and commands.users and all(commands.users)
        ):
            yield ("coreflux",), "the setting coreflux needs users, at least one name, and routes, the name of a folder"
        if not self.routes:
            yield ("routes",), "the setting routes is missing: name a file or folder of route definitions"
        if (self.server_certfile is None) != (self.server_keyfile is None):
            both = ("server_certfile", "server_keyfile")
            yield both, "server_certfile and server_keyfile belong together: set both, or none"
        token = self.admin_token
        if token is not None and not _TOKEN.fullmatch(token) and _unfilled_secret(token) is None:
            message = "the setting admin_token must be 16 or more visible ASCII characters without spaces"
            yield ("admin_token",), message
        if self.capture not in list(Capture):
            choices = ", ".join(Capture)
            yield ("capture",), f'the setting capture is "{self.capture}"; allowed is one of: {choices}'
        if self.admin_token is None and not is_loopback(self.admin_host):
            message = (
                f"the setting admin_host is {self.admin_host}, which other machines can reach: "
                "set admin_token, or leave it at 127.0.0.1"
            )
            yield ("admin_host", "admin_token"), message

    def faults_of(self, route: Route) -> Iterator[Fault]:
        """Yield an error for each missing setting that a route needs, and a warning if messages would be lost."""
        config, name = route.config, route.name
        if self.spool is None and not self.is_mqtt_5 and route.route_config.overload_policy is OverloadPolicy.LOSSLESS:
            yield _needed(
                route, f'route {name} has OVERLOAD_POLICY "lossless", which needs the plugin\'s setting spool',
                "set spool to a file, for example spool: spool.db",
            )  # fmt: skip
        for event in () if self.is_mqtt_5 else route.client_events:
            placeholders = [one for text in event.texts for one in text.placeholders]
            lacking = [one.written for one in placeholders if one.root == "property" and one.default is None]
            if lacking:
                needs = f"event {event.name} of route {name} needs {lacking[0]}, a user property of MQTT 5"
                yield _needed(
                    route, f"{needs}: amqtt speaks MQTT 3.1.1, so every call would fail",
                    f"write a default, as in {lacking[0][:-1]}|none}}, or run the route in a worker",
                )  # fmt: skip
        if self.server_certfile is None and config.use_ssl and config.enable_server and route.server_events:
            plain = "where a proxy before the bridge has the certificate"
            if config.base_address is not None:
                plain = "and begin BASE_ADDRESS with https://"
            yield _needed(
                route,
                f'route {name} has USE_SSL "true" and server events, which need the plugin\'s setting server_certfile',
                f"set server_certfile and server_keyfile; or leave USE_SSL out, {plain}",
            )
        if route.is_lossless and (self.failures is None or self.capture == Capture.NONE):
            for event in route.client_events:
                if not (event.failure_payload and (event.error_topic or event.destination_topic)):
                    yield _needed(
                        route,
                        f"without the setting failures, messages that fail for good are lost: event {event.name} of "
                        f"lossless route {name} has no FAILURE_PAYLOAD with a topic",
                        'set failures to a file, or write WITH FAILURE_PAYLOAD "true" and WITH ERROR_TOPIC',
                        Severity.WARNING,
                    )


@dataclass
class WorkerSettings(Settings):
    """The settings of `worker.yaml`: those of the plugin except `spool`, the broker, and the place in the group."""

    is_mqtt_5: ClassVar[bool] = True

    broker: str = _setting(
        "mqtt://127.0.0.1:1883",
        "`mqtt://[USER@]HOST[:PORT]`, or `mqtts://` for TLS",
        "mqtts://bridge@broker.example:8883",
    )
    group: str = _setting(
        "", "all workers of a group run the same routes and share the messages", "plant", is_required=True
    )
    slots: int = _setting(
        4,
        "kept sessions of the group that its workers share, and so the most workers that share ORDERED topics",
        "8",
        low=1,
        high=1024,
    )
    slot: int | None = _setting(
        None, "a slot that this worker prefers, from 0; it is not taken from a worker that lives", "3", high=1023
    )
    adopt_seconds: float = _setting(
        30, "a worker that is silent for so long has lost its slots to the others", "60", low=1, high=86_400
    )
    session_expiry: int = _setting(
        86_400,
        "seconds that the broker keeps a slot's sessions while they are not connected",
        "604800",
        low=60,
        high=4_294_967_294,
    )
    password_secret: str | None = _setting(
        None,
        f"file of `secrets_dir` with the broker's password; otherwise the environment variable `{PASSWORD_VARIABLE}`",
        "broker-password",
    )
    ca_file: str | None = _setting(None, "PEM file of authorities, instead of the system's", "/etc/bridge/ca.pem")
    cert_file: str | None = _setting(
        None, "PEM file of the worker's certificate, with `key_file`", "/etc/bridge/worker.pem"
    )
    key_file: str | None = _setting(None, "PEM file of its key, not encrypted", "/etc/bridge/worker.key")

    def setting_faults(self) -> Iterator[SettingFault]:
        """Yield all faults of the values; neither certificates nor the password are read."""
        yield from super().setting_faults()
        if not _GROUP.fullmatch(self.group):
            message = "must be a name of 1 to 64 letters, digits, _ . or -: all workers of a group share it"
            yield ("group",), f"the setting group {message}"
        if self.slot is not None and self.slot >= self.slots > 0:
            yield ("slot",), f"the setting slot is {self.slot}; with slots: {self.slots} it is 0 to {self.slots - 1}"


def read_secret(settings: Settings, name: str, variable: str) -> str | None:
    """Return a secret from a file of `secrets_dir`, or from the environment; None if there is neither. Blocks.

    Args:
        settings: The settings; the one called `<name>_secret` names the file.
        name: The setting that the secret is for, such as `admin_token`.
        variable: The environment variable that is read if no file is named.

    Raises:
        ConfigurationError: The file cannot be read or is empty, or the secret is an unfilled `${NAME}` or `$NAME`.
    """
    setting = f"{name}_secret"
    file: str | None = getattr(settings, setting)
    if file is None:
        source, secret = variable, os.environ.get(variable)
    else:
        if "/" in file:
            raise ConfigurationError(f"the setting {setting} must be the name of a file in secrets_dir, without /")
        path = Path(settings.secrets_dir) / file
        source = str(path)
        try:
            regular_file(path)
            secret = path.read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"cannot read the setting {setting}, {path}: {why}") from error
        if not secret:  # without it there would be no password
            raise ConfigurationError(f"cannot read the setting {setting}, {path}: it is empty")
    if secret is not None and _unfilled_secret(secret) == secret:
        raise ConfigurationError(f"{source} is {secret}, which nothing replaces here: write the secret itself")
    return secret


def check_settings(settings: Settings) -> None:
    """Raise `ConfigurationError` for the first setting that cannot be used."""
    for _, message in settings.setting_faults():
        raise ConfigurationError(message)


def _needed(route: Route, message: str, hint: str, severity: Severity = Severity.ERROR) -> Fault:
    return Fault(route.path, route.position, severity, message, hint)
