"""Finds credentials that are written out in a route file, where everybody who reads the file sees them. Pure.

`install` refuses a template with one, `check --strict` warns of one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.lot.definitions import Definition
from amqtt_rest_bridge.lot.evaluation import Environment, Value, evaluate, place_in
from amqtt_rest_bridge.lot.masking import is_credential
from amqtt_rest_bridge.lot.placeholders.text import Fixed
from amqtt_rest_bridge.lot.settings_table import CREDENTIALS, PARAMETERS
from amqtt_rest_bridge.lot.sources import Report

_PLACEHOLDER: Final = re.compile(r"\{[^{}\s]+\}")
_SCHEME: Final = re.compile(r"(?:Bearer|Basic|Token|ApiKey) ", re.IGNORECASE)
_SECRET_NAME: Final = re.compile(r'GET SECRET "([^"]+)"')
_PARAMETER: Final = re.compile(r"[?&]([^?=&#]+)=([^&#]+)")
# Unlike `is_credential_parameter`, which masks, it leaves `keyword` and `sort_key` alone.
_CREDENTIAL_PARAMETER: Final = re.compile(
    r"(?:.*[._-])?(?:token|secret|password|signature|sig)|(?:(?:x|api|app|access|auth|subscription)[._-]?)*key",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class LiteralCredential:
    """A credential in the text of a route: what holds it, where its value begins and ends, what to write instead."""

    holder: str
    begin: int
    end: int
    hint: str


def literal_credentials(
    definition: Definition, environment: Environment, report: Report
) -> Iterator[LiteralCredential]:
    """Yield the credentials that settings, headers and query parameters of a route hold as a text.

    A credential that a variable, a secret or a message brings in is not one; the default of a variable in use is one.
    `report` is that of the file; nothing is reported.
    """
    for block in definition.blocks:
        rows = PARAMETERS[block.kind]
        found = [(name, node, rows[name].example) for name, node in block.settings.items() if name in CREDENTIALS]
        for line in block.headers:
            header = on_one_line(line.name.text.strip("'\""))
            if is_credential(header):
                secret = "api-token" if header.lower() == "authorization" else header.lower()
                found.append((f"the header {header}", line, f'GET SECRET "{secret}"'))
        for holder, node, example in found:
            value = evaluate(node.pieces, environment, Report("", ""))
            if value is not None and value.text and not value.from_outside and not _PLACEHOLDER.search(value.text):
                scheme, secret = _SCHEME.match(value.text), _SECRET_NAME.findall(example)[0]
                written = f'GET SECRET "{secret}"'
                written = f'"{scheme[0]}" + {written}' if scheme else written
                end = node.pieces[-1].offset + len(node.pieces[-1].text)
                yield LiteralCredential(holder, value.offset, end, _hint(written, secret))
        endpoint = block.settings.get("ENDPOINT")
        value = evaluate(endpoint.pieces, environment, Report("", "")) if endpoint is not None else None
        yield from _parameters(value, report) if value is not None else ()


def _parameters(endpoint: Value, report: Report) -> Iterator[LiteralCredential]:
    """Yield the query parameters of ENDPOINT that are credentials by their names, and have a literal value."""
    text = "".join([part if isinstance(part, str) else _shown(part) for part in endpoint.parts])
    end = 0
    for name, value in _PARAMETER.findall(text):
        if _CREDENTIAL_PARAMETER.fullmatch(name) and not _PLACEHOLDER.search(value):
            begin, end = place_in(endpoint, re.escape(f"{name}={value}"), report, end)
            secret = name.lower().replace("_", "-")
            hint = _hint(f"{name}={{secret.{secret}}}", secret)
            yield LiteralCredential(f"the parameter {on_one_line(name)} of ENDPOINT", begin, end, hint)


def _shown(part: Fixed) -> str:
    """Return the default of a variable, which is written in the file; else the name of the variable in braces."""
    return part.text if "|" in part.label else part.label


def _hint(written: str, secret: str) -> str:
    return f'write {written}, and the credential into the file "{secret}" in secrets_dir'
