"""The settings of the API: the configuration of the plugin, the options and variables of `serve`.

Pure but for `Settings.setting_faults`, which looks at files. The options of `serve` say what each setting means.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from template_api.errors import SettingsError

DEFAULT_THREADS = 2  # measured: 4 answer a fifth less, as they take the interpreter lock from each other
MOST_THREADS = 64
_HIGHEST_PORT = 65535
_ADDRESS = re.compile(r"https?://([^\s/?#\[\]]+|\[[\da-f:.]+\](:\d+)?)(/[^\s?#]*)?", re.IGNORECASE)
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}  # noqa: S104 - recognised, not bound


def variable_of(setting: str) -> str:
    """Return the environment variable that sets a setting."""
    return f"TEMPLATE_API_{setting.upper()}"


@dataclass
class Settings:
    """Settings of `template-api serve` and of the broker's plugin."""

    host: str = "127.0.0.1"
    port: int = 8000
    database_url: str = "sqlite:///template-library.db"
    library: str | None = None
    base_url: str | None = None
    index_dir: str | None = None
    log_empty_searches: bool = False
    playground: bool = True

    def value_faults(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Return the settings with a wrong value, and what is wrong; database and library are not looked at."""
        if not 0 <= self.port <= _HIGHEST_PORT:
            yield ("port",), f"port must be a whole number from 0 to {_HIGHEST_PORT}, not {self.port}"
        for name, value in asdict(self).items():
            if isinstance(value, str) and not value.strip():
                yield (name,), f"{name} must not be empty"
            elif isinstance(value, str) and not value.isprintable():  # not shown: a database URL may hold a password
                yield (name,), f"{name} holds characters that cannot be printed, or is not UTF-8"
            elif name == "base_url" and value is not None and not _ADDRESS.fullmatch(value):
                yield (name,), f"base_url must be an address such as https://library.example, not {value!r}"

    def setting_faults(self) -> Iterator[tuple[tuple[str, ...], str]]:
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
        return {variable_of(name): "" if value is None else str(value) for name, value in values.items()}
