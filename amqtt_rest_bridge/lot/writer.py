"""A route to text: its definition as it is in use, without secrets, which pages show. Pure."""

import re
from collections.abc import Iterable, Iterator

from amqtt_rest_bridge.lot import forms
from amqtt_rest_bridge.lot.evaluation import BlockSettings, Value
from amqtt_rest_bridge.lot.masking import Masker, is_credential, is_credential_parameter
from amqtt_rest_bridge.lot.model import SignatureScheme
from amqtt_rest_bridge.lot.placeholders.kinds import Mode
from amqtt_rest_bridge.lot.placeholders.text import Place, parse
from amqtt_rest_bridge.lot.secret_search import MASK
from amqtt_rest_bridge.lot.settings_table import PARAMETERS, ROUTE_TYPE, USER_NAMES, Kind

_MASKED_KEY = "whsec_KioqKioq"  # asterisks in Base64, as standard-webhooks wants it
_FREE_TEXTS = (
    *(Kind.STRING, Kind.TEMPLATE, Kind.ADDRESS, Kind.CONDITION, Kind.MEDIA_TYPE),
    *(Kind.TOPIC, Kind.TOPIC_TEMPLATE, Kind.FILTER),
)
_QUERY_VALUE = re.compile(r"(?<=[?&;])([^=&;]+)=([^&]+)")
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\t": "\\t"})


def write_definition(
    name: str,
    config: BlockSettings,
    route_config: BlockSettings | None,
    events: Iterable[BlockSettings],
    masker: Masker,
) -> str:
    """Return the definition of a route in one layout: what is in use, whatever its file says by now.

    It reads back as the same route, but for what is masked: secrets are `***`. What GET, `{env.X}` and `{secret.X}`
    read is named, as it was written.
    """
    lines = [f"DEFINE ROUTE {name} WITH TYPE {ROUTE_TYPE}", "    ADD REST_API_CONFIG", *_settings(config, masker)]
    if route_config is not None and route_config.texts:
        lines += ["    ADD ROUTE_CONFIG", *_settings(route_config, masker)]
    for event in events:
        lines += [f"    ADD EVENT {event.block.name}", *_settings(event, masker)]
        lines += ["        WITH HEADERS"] if event.headers else []
        for header, value in event.headers:
            shown = _value(value, masker)
            if is_credential(header.text):  # its scheme, as in Bearer, and placeholders of messages
                text = "".join([part if isinstance(part, str) else MASK for part in value.parts])
                scheme, space, rest = text.partition(" ")
                has_scheme = space and "{" not in scheme
                shown = _quoted(f"{scheme} {_without_literals(rest)}" if has_scheme else _without_literals(text))
            lines.append(f"            ADD {_quoted(header.text)} {shown}")
    return "\n".join(lines)


def _settings(settings: BlockSettings, masker: Masker) -> Iterator[str]:
    """Yield the lines of a block's settings."""
    for name, value in settings.texts.items():
        parameter = PARAMETERS[settings.block.kind][name]
        if parameter.secret or name in USER_NAMES:
            is_webhook = settings.values.get("SIGNATURE_SCHEME") == SignatureScheme.STANDARD_WEBHOOKS
            mask = _MASKED_KEY if is_webhook and name == "SIGNATURE_SECRET" else MASK
            yield f'        WITH {name} "{mask}"'
        else:
            hides = parameter.kind in _FREE_TEXTS
            yield f"        WITH {name} {_value(value, masker if hides else None, is_address=name in forms.ADDRESSES)}"


def _without_literals(text: str) -> str:
    """Mask all of a text but its placeholders."""
    pieces = parse(text, Place.TEXT, Mode.CLIENT).pieces
    return "".join([MASK if isinstance(piece, str) else piece.written for piece in pieces])


def _value(value: Value, masker: Masker | None, *, is_address: bool = False) -> str:
    """Write a value: its strings in quotes, what GET reads by its name, joined by +; an address without credentials."""

    def without_credential(found: re.Match[str]) -> str:
        """Mask a query parameter that carries a credential, but for placeholders."""
        return f"{found[1]}={_without_literals(found[2])}" if is_credential_parameter(found[1]) else found[0]

    pieces: list[str] = []
    texts: list[str] = []  # of the string that is written
    for part in value.parts:
        if isinstance(part, str):
            shown = part if masker is None else masker.text(part)
            texts.append(_QUERY_VALUE.sub(without_credential, shown) if is_address else shown)
        elif part.needs_escape:
            texts.append(part.label)
        else:
            source, _, name = part.label.strip("{}").partition(".")
            pieces += [_quoted("".join(texts))] if any(texts) else []
            pieces.append(f'GET {source.upper()} "{name}"')
            texts = []
    return " + ".join(pieces + ([_quoted("".join(texts))] if any(texts) or not pieces else []))


def _quoted(text: str) -> str:
    quote = "'" if '"' in text and "'" not in text else '"'
    return quote + text.translate(_ESCAPES).replace(quote, f"\\{quote}") + quote
