"""What the routes of a template would do: hosts called, topics, ports, credentials that their text publishes. Pure.

It is taken from the settings as they are written, so that a route whose variables are missing here is shown too.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from amqtt_rest_bridge.cli import several
from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.language.definitions import Block, Definition
from amqtt_rest_bridge.language.evaluation import Environment, NameEnvironment, Value, evaluate
from amqtt_rest_bridge.language.parameters import PARAMETERS
from amqtt_rest_bridge.language.sources import Report
from amqtt_rest_bridge.masking import is_credential
from amqtt_rest_bridge.model import RestApiConfig

_CREDENTIALS: Final = [one.name for settings in PARAMETERS.values() for one in settings.values() if one.secret]
_READ: Final = ("SOURCE_TOPIC", "REPLY_TOPIC")
_WRITTEN: Final = ("DESTINATION_TOPIC", "ERROR_TOPIC")
_CALLED: Final = ("BASE_ADDRESS", "OAUTH2_TOKEN_URL")
_HOST: Final = re.compile(r"(?:https?://)?(?:[^/@]*@)?([^/?#]*)", re.IGNORECASE)
_PLACEHOLDER: Final = re.compile(r"\{[^{}\s]+\}")
_SHOWN: Final = 200
_MOST: Final = 50


@dataclass(slots=True)
class Effects:
    """What routes would do; values of variables and secrets are shown by their names."""

    hosts: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    ports: set[str] = field(default_factory=set)

    def add(self, definition: Definition) -> None:
        """Add those of a route."""
        for block in definition.blocks:
            if _is_on(block, "ENABLE_CLIENT"):
                addresses = (_shown(block, name) for name in _CALLED)
                self.hosts |= {found[1] for each in addresses if each and (found := _HOST.match(each))}
            if _is_on(block, "ENABLE_SERVER"):
                self.ports.add(_shown(block, "SERVER_PORT") or str(RestApiConfig().server_port))
            self.reads |= {topic for name in _READ if (topic := _shown(block, name))}
            self.writes |= {topic for name in _WRITTEN if (topic := _shown(block, name))}

    def lines(self) -> Iterator[str]:
        """Yield what an operator is shown."""
        for what, names in (
            ("calls", self.hosts),
            ("reads the topics", self.reads),
            ("writes the topics", self.writes),
            ("listens on the ports", self.ports),
        ):
            if names:
                yield f"{what}: {several([on_one_line(name, _SHOWN) for name in sorted(names)], _MOST)}"


def published_credentials(definition: Definition, environment: Environment) -> Iterator[tuple[str, int]]:
    """Yield the credentials of a route that its text holds, as setting or header, and their offsets.

    Those that a variable, a secret or a message brings in are not among them, a default that is in use is.
    """
    for block in definition.blocks:
        for name in _CREDENTIALS:
            node = block.settings.get(name)
            if node is not None and _is_literal(evaluate(node.pieces, environment, Report("", ""))):
                yield name, node.offset
        for header in block.headers:
            name = header.name.text.strip("'\"")
            if is_credential(name) and _is_literal(evaluate(header.pieces, environment, Report("", ""))):
                yield f"the header {on_one_line(name)}", header.offset


def _is_literal(value: Value | None) -> bool:
    return value is not None and not value.brought_in and bool(value.text) and not _PLACEHOLDER.search(value.text)


def _is_on(block: Block, name: str) -> bool:
    """Return whether a mode is on, or may be by a variable."""
    shown = _shown(block, name)
    return shown is not None and (shown.lower() == "true" or "{" in shown)


def _shown(block: Block, name: str) -> str | None:
    node = block.settings.get(name)
    if node is None:
        return None
    value = evaluate(tuple(node.pieces), NameEnvironment({}, Path()), Report("", ""))
    return "" if value is None else "".join(part if isinstance(part, str) else part.label for part in value.parts)
