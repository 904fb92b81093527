"""The settings of the API and their checks. Pure but for the environment that is handed in; no database is touched."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from template_api.errors import SettingsError

ENVIRONMENT_PREFIX = "TEMPLATE_API_"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
DEFAULT_DATABASE_URL = "sqlite:///template-library.db"
DEFAULT_THREADS = 4  # measured: 16 are slower than 4, as they take the interpreter from each other
MOST_THREADS = 64
_HIGHEST_PORT = 65535
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}  # noqa: S104 - recognised, not bound


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of `template-api serve` and of the broker's plugin.

    `base_url` None means: made from the host and the port that was bound. `index_dir` None means: the user's cache
    folder.

    Raises:
        SettingsError: a value cannot be used.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    database_url: str = DEFAULT_DATABASE_URL
    library: str | None = None
    base_url: str | None = None
    index_dir: str | None = None

    def __post_init__(self) -> None:
        if not self.database_url.strip():
            raise SettingsError("database_url must not be empty; write for example sqlite:///template-library.db")
        for _, message in setting_faults(self.host, self.port, self.base_url):
            raise SettingsError(message)

    def public_url(self, bound_port: int) -> str:
        """Return the address that callers see, without a trailing slash."""
        if self.base_url is not None:
            return self.base_url.rstrip("/")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{_ANY_ADDRESS.get(self.host, host)}:{bound_port}"

    def environment(self, base_url: str) -> dict[str, str]:
        """Return these settings as variables for a child process: other users can read its command line."""
        variables = {
            "HOST": self.host,
            "PORT": str(self.port),
            "DATABASE_URL": self.database_url,
            "LIBRARY": self.library or "",
            "BASE_URL": base_url,
            "INDEX_DIR": self.index_dir or "",
        }
        return {ENVIRONMENT_PREFIX + name: value for name, value in variables.items()}


def environment_settings(environment: Mapping[str, str]) -> dict[str, str | int]:
    """Return the settings that environment variables set; an empty variable sets none.

    Raises:
        SettingsError: TEMPLATE_API_PORT is not a whole number.
    """
    given: dict[str, str | int] = {}
    for name in ("host", "port", "database_url", "library", "base_url", "index_dir"):
        variable = ENVIRONMENT_PREFIX + name.upper()
        value = environment.get(variable, "").strip()
        if value:
            given[name] = port_number(value, variable) if name == "port" else value
    return given


def port_number(text: str, name: str = "port") -> int:
    """Read a port number written in plain digits.

    Raises:
        SettingsError: it is not one.
    """
    if not (text.isascii() and text.isdigit() and int(text) <= _HIGHEST_PORT):
        raise SettingsError(f"{name} must be a whole number from 0 to {_HIGHEST_PORT}, not {text!r}")
    return int(text)


def setting_faults(host: str, port: int, base_url: str | None) -> Iterator[tuple[tuple[str, ...], str]]:
    """Return the name of each setting that cannot be used, and why; database, library and index are not looked at."""
    if not 0 <= port <= _HIGHEST_PORT:
        yield ("port",), f"port must be a whole number from 0 to {_HIGHEST_PORT}, not {port}"
    if not host.strip():
        yield ("host",), "host must not be empty; write 127.0.0.1, or 0.0.0.0 for every network"
    if base_url is None:
        return
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and not (parts.query or parts.fragment)
    except ValueError:
        usable = False
    if not usable or any(character.isspace() for character in base_url):
        yield ("base_url",), f"base_url must be an address such as https://library.example, not {base_url!r}"
