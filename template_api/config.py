"""The settings of the API, one row each: the plugin's class, the options and variables of `serve`, the README's table.

Pure but for `Settings.setting_faults`, which looks at files.
"""

import re
from collections.abc import Iterator
from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any, NamedTuple

from template_api.errors import SettingsError

DEFAULT_THREADS = 2  # measured: 4 answer a fifth less, as they take the interpreter lock from each other
MOST_THREADS = 64
_ADDRESS = re.compile(r"https?://([^\s/?#\[\]]+|\[[\da-f:.]+\](:\d+)?)(/[^\s?#]*)?", re.IGNORECASE)
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}  # noqa: S104 - recognised, not bound

SettingFault = tuple[tuple[str, ...], str]
"""The names of the settings that a fault is about, and what is wrong with them."""


class Row(NamedTuple):
    """What there is to know of a setting beside type and default: `absent` holds without a value, `high` at most."""

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


def variable_of(setting: "Field[Any]") -> str:
    """Return the environment variable that sets it."""
    return f"TEMPLATE_API_{setting.name.upper()}"


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
        for one in fields(self):
            value, row = getattr(self, one.name), row_of(one)
            if one.type is int and not 0 <= value <= row.high:
                yield (one.name,), f"{one.name} must be a whole number from 0 to {row.high}, not {value}"
            elif isinstance(value, str) and not value.strip():
                yield (one.name,), f"{one.name} must not be empty; write for example {row.example}"
            elif isinstance(value, str) and not value.isprintable():  # not shown: a database URL may hold a password
                yield (one.name,), f"{one.name} holds characters that cannot be printed, or is not UTF-8"
            elif one.name == "base_url" and value is not None and not _ADDRESS.fullmatch(value):
                yield (one.name,), f"base_url must be an address such as {row.example}, not {value!r}"

    def setting_faults(self) -> Iterator[SettingFault]:
        """Return what would stop the start, for `rest-bridge serve --check`; writes nothing, connects to nothing."""
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
