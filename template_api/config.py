"""The settings of the API, one row each: the plugin's class, the options and variables of `serve`, the README's table.

Pure but for `Settings.setting_faults`, which looks at files, and for what is logged of variables that are handed in.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from template_api.errors import SettingsError, did_you_mean, visible

log = logging.getLogger(__name__)

DEFAULT_THREADS = 2  # measured: 4 answer a fifth less, as they take the interpreter lock from each other
MOST_THREADS = 64
_PREFIX = "TEMPLATE_API_"
_NEAR = 0.91  # how like a variable another one is that is probably misspelt; the prefix alone makes them alike
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}  # noqa: S104 - recognised, not bound

SettingFault = tuple[tuple[str, ...], str]
"""The names of the settings that a fault is about, and what is wrong with them."""


@dataclass(frozen=True, slots=True)
class Row:
    """What there is to know of a setting beside its name, type and default.

    `absent` is what holds without a value; `high` is the largest number, 0 the least.
    """

    meaning: str
    example: str
    absent: str = ""
    high: int = 0


def _setting(default: Any, meaning: str, example: str, absent: str = "", high: int = 0) -> Any:
    return field(default=default, metadata={"row": Row(meaning, example, absent, high)})


def row_of(setting: "Field[Any]") -> Row:
    """Return the row of a field of `Settings`."""
    row: Row = setting.metadata["row"]
    return row


def option_of(setting: "Field[Any]") -> str:
    """Return the option of `serve` that sets it; of what is on as shipped, the one that turns it off."""
    return f"--{'no-' if setting.default is True else ''}{setting.name.replace('_', '-')}"


def variable_of(setting: "Field[Any]") -> str:
    """Return the environment variable that sets it."""
    return f"{_PREFIX}{setting.name.upper()}"


@dataclass
class Settings:
    """Settings of `template-api serve` and of the broker's plugin."""

    host: str = _setting("127.0.0.1", "address to listen on; `0.0.0.0` opens it to the network", "192.168.1.10")
    port: int = _setting(
        8000,
        "port to listen on; 0 takes a free one: `TemplateApiPlugin.bound_port`, or the line that `serve` logs",
        "8080",
        high=65535,
    )
    database_url: str = _setting(
        "sqlite:///template-library.db", "`sqlite:///FILE` or `postgresql+psycopg://USER:PASSWORD@HOST/NAME`",
        "sqlite:////var/lib/templates.db",
    )  # fmt: skip
    library: str | None = _setting(
        None, "folder or `.jsonl` file to import when the database is empty", "conf/library", "none"
    )
    base_url: str | None = _setting(
        None, "public address; templates without a `url` of their own get `{base_url}/templates/{slug}`",
        "https://library.example", "`http://{host}:{port}`",
    )  # fmt: skip
    index_dir: str | None = _setting(
        None, "has no effect any more: the search index is in memory", "/var/cache/templates", "none"
    )
    log_empty_searches: bool = _setting(
        False, "log the searches that find nothing, one line each, so that synonyms can be added", "true", "`false`"
    )

    playground: bool = _setting(True, "serve `/playground`, where callers try definitions", "false", "`true`")

    def value_faults(self) -> Iterator[SettingFault]:
        """Return what is wrong with the values; database and library are not looked at."""
        yield from self._simple_faults()
        if not self.host.strip():
            yield ("host",), "host must not be empty; write 127.0.0.1, or 0.0.0.0 for every network"
        if not self.database_url.strip():
            yield ("database_url",), "database_url must not be empty; write for example sqlite:///template-library.db"
        elif not self.database_url.isprintable():  # the text is not shown, as it may hold a password
            yield ("database_url",), "database_url holds characters that cannot be printed, or is not UTF-8"
        if self.base_url is None:
            return
        try:
            parts = urlsplit(self.base_url)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and not (parts.query or parts.fragment)
        except ValueError:
            usable = False
        if not usable or " " in self.base_url or not self.base_url.isprintable():
            yield ("base_url",), f"base_url must be an address such as https://library.example, not {self.base_url!r}"

    def _simple_faults(self) -> Iterator[SettingFault]:
        for one in fields(self):
            value, high = getattr(self, one.name), row_of(one).high
            if one.type is bool and not isinstance(value, bool):
                yield (one.name,), f"{one.name} must be true or false, not {value!r}"
            elif one.type is int and not 0 <= value <= high:
                yield (one.name,), f"{one.name} must be a whole number from 0 to {high}, not {value}"
            elif isinstance(value, str) and "\0" in value and not one.name.endswith("_url"):  # which have their own
                yield (one.name,), f"{one.name} holds NUL, which no file or host has"

    def setting_faults(self) -> Iterator[SettingFault]:
        """Return what would stop the start, places included; writes nothing, connects to nothing.

        `rest-bridge serve --check` asks this of each plugin that it can ask.
        """
        yield from self.value_faults()
        from template_api.library import place_faults  # brings SQLAlchemy, which only the check needs here

        yield from place_faults(self.database_url, self.library)

    def check(self) -> None:
        """Raise `SettingsError` for the first value that cannot be used."""
        for _, message in self.value_faults():
            raise SettingsError(message)

    def public_url(self, bound_port: int) -> str:
        """Return the address that callers see, without a trailing slash."""
        if self.base_url is not None:
            return self.base_url.rstrip("/")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{_ANY_ADDRESS.get(self.host, host)}:{bound_port}"

    def environment(self, base_url: str) -> dict[str, str]:
        """Return these settings as variables for a child process: other users can read its command line."""
        values = asdict(self) | {"base_url": base_url}
        return {variable_of(one): "" if values[one.name] is None else str(values[one.name]) for one in fields(self)}


def read_settings(options: Mapping[str, str | bool | None], environment: Mapping[str, str]) -> Settings:
    """Return the settings that options and variables set; an option overrides its variable, an empty one sets none.

    Raises `SettingsError` for a value that cannot be used; the message names the option or variable of a number.
    """
    variables = [variable_of(one) for one in fields(Settings)]
    for name in environment:
        # Container systems add variables of their own to this prefix, such as TEMPLATE_API_SERVICE_HOST.
        if name.startswith(_PREFIX) and name not in variables and (meant := did_you_mean(name, variables, _NEAR)):
            log.warning("the variable %s sets nothing%s", visible(name), meant)
    given: dict[str, Any] = {}
    for one in fields(Settings):
        option, source = options.get(one.name), option_of(one)
        text = str(option).lower() if isinstance(option, bool) else option
        if text is None:
            text, source = environment.get(variable_of(one), "").strip() or None, variable_of(one)
        if text is None:
            continue
        high = row_of(one).high
        if one.type is int and not (text.isascii() and text.isdigit() and int(text) <= high):
            raise SettingsError(f"{source} must be a whole number from 0 to {high}, not {text!r}")
        if one.type is bool and text.lower() not in _FLAGS:
            raise SettingsError(f"{source} must be true or false, not {text!r}")
        given[one.name] = int(text) if one.type is int else _FLAGS[text.lower()] if one.type is bool else text
    settings = Settings(**given)
    settings.check()
    return settings
