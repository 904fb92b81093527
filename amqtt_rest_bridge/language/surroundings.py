"""What a route file may refer to outside of itself: environment variables, secrets, files.

The language's only reading of the machine it runs on, handed to it as a parameter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from amqtt_rest_bridge.errors import BridgeError

MAX_SECRET_BYTES = 65_536


_ELSEWHERE = "secrets_dir (check and try: --secrets-dir)"


class NotAvailable(BridgeError):  # noqa: N818  # says what is the case, as CallFailed does
    """A variable or secret cannot be had; the message says why and never holds a value, `hint` what to do next."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment variables and the folder that holds one file for each secret."""

    environment: Mapping[str, str]
    secrets_dir: Path

    def variable(self, name: str) -> str:
        """Give the value of an environment variable.

        Raises:
            NotAvailable: it is not set or is no text.
        """
        value = self.environment.get(name)
        if value is None:
            hint = "set it in the environment of the broker (or of this command)"
            raise NotAvailable(f"the environment variable {name} is not set", hint)
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            raise NotAvailable(f"the environment variable {name} is not UTF-8 text", "set it to text in UTF-8")
        return value

    def secret(self, name: str) -> str:
        """Read a secret; the line break at its end is no part of it. Blocks for one small file.

        Raises:
            NotAvailable: it cannot be read, or its name would leave the folder.
        """
        if "/" in name or "\\" in name or "\0" in name or name in ("", ".", ".."):
            message = "the name of a secret is the name of a file, without a path"
            raise NotAvailable(message, f"write the name alone; the folder is {_ELSEWHERE}")
        try:
            with (self.secrets_dir / name).open("rb") as file:
                content = file.read(MAX_SECRET_BYTES + 1)
            text = content.decode()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            message = f"the secret {name} cannot be read from {self.secrets_dir}: {reason}"
            raise NotAvailable(message, _way_out(error)) from None
        if len(content) > MAX_SECRET_BYTES:
            message = f"the secret {name} is larger than {MAX_SECRET_BYTES} bytes"
            raise NotAvailable(message, "put the secret alone into the file")
        return text.removesuffix("\n").removesuffix("\r")

    @staticmethod
    def has_file(path: str) -> bool:
        """Tell whether a file is there to be read; relative paths begin at the working directory."""
        try:
            return Path(path).is_file()
        except OSError:  # a name that is too long for the file system
            return False


def _way_out(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"put that file there, or name another folder: {_ELSEWHERE}"
    if isinstance(error, OSError):
        return "make it a file that the user of the broker (or of this command) can read"
    return "store it as text in UTF-8, such as base64"
