"""The settings of the language as other programs show them: texts, JSON, and a first route. Pure.

All of it is made from the rows of `parameters`.
"""

import textwrap
from typing import Any, Final

from amqtt_rest_bridge.lot.parameters import PARAMETERS, ROUTE_TYPE, Applies, BlockKind, Parameter

_LINE = textwrap.TextWrapper(98, initial_indent="  ", subsequent_indent="    ")
_MODES = {Applies.CLIENT: "client mode", Applies.SERVER: "server mode", Applies.BOTH: "both modes"}


def rows_of(name: str) -> list[tuple[BlockKind, Parameter]]:
    """Return the settings of a name, in any case, with their blocks; [] for a name that no setting has."""
    return [(kind, rows[name.upper()]) for kind, rows in PARAMETERS.items() if name.upper() in rows]


def text_of(kind: BlockKind, row: Parameter) -> str:
    """Return what there is to know of a setting, in lines of at most 100 characters."""
    facts = [f"value: {row.allowed}"]
    if row.default is not None:
        facts.append(f"default: {row.default}")
    if row.placeholders:
        facts.append("may hold placeholders")
    if not row.portable:
        facts.append("an extension of the LoT language by this bridge (ext)")
    lines = [row.meaning, *row.notes, *facts, f"WITH {row.name} {row.example}"]
    title = f"{row.name}: {kind}, {_MODES[row.applies]}\n"
    return title + "".join([f"{_LINE.fill(line)}\n" for line in lines])


def markdown_of(row: Parameter) -> str:
    """Return what there is to know of a setting as Markdown, for editors."""
    default = f", default `{row.default}`" if row.default is not None else ""
    mode = "" if row.applies is Applies.BOTH else f" ({_MODES[row.applies]})"
    notes = "".join(f"- {note}\n" for note in row.notes)
    lines = [f"**{row.name}**: {row.allowed}{default}{mode}", row.meaning, notes, "" if row.portable else "*ext*"]
    return "\n\n".join([*filter(None, lines), f"```lot\nWITH {row.name} {row.example}\n```"])


def list_of_settings() -> str:
    """Return every setting with its value, in its block."""
    lines = []
    for kind, rows in PARAMETERS.items():
        lines += [f"{kind}\n", *(f"  {row.name:<24}{row.allowed}\n" for row in rows.values())]
    return "".join(lines)


def json_of(kind: BlockKind, row: Parameter) -> dict[str, Any]:
    """Return a setting as a JSON object; members that say nothing of it are null or empty."""
    return {
        "name": row.name,
        "block": kind,
        "kind": row.kind.name.lower(),
        "allowed": row.allowed,
        "default": row.default,
        "mode": row.applies,
        "meaning": row.meaning,
        "example": f"WITH {row.name} {row.example}",
        "choices": dict(row.choices),
        "notes": list(row.notes),
        "requires": [rule.name for rule in row.requires if rule.name != row.name],
        "excludes": [rule.name for rule in row.excludes],
        "placeholders": list(row.placeholders),
        "secret": row.secret,
        "portable": row.portable,
    }


_FIRST_ROUTE: Final = {
    f"ADD {BlockKind.CONFIG}": {"ENABLE_CLIENT": '"true"', "BASE_ADDRESS": '"https://api.example.com"'},
    f"ADD {BlockKind.EVENT} Send": {
        "SOURCE_TOPIC": '"sensors/+/temperature"',
        "DESTINATION_TOPIC": '"api/results"',
        "METHOD": '"POST"',
        "ENDPOINT": '"/readings"',
        "BODY": "'{\"reading\": {payload}}'",
    },
}


def template() -> str:
    """Return a definition that can be added as it is, once its address is put in; other settings are comments."""
    lines = [f"DEFINE ROUTE RouteName WITH TYPE {ROUTE_TYPE}"]
    for head, used in _FIRST_ROUTE.items():
        lines.append(f"    {head}")
        lines += [f"        WITH {name} {value}" for name, value in used.items()]
        rows = PARAMETERS[BlockKind(head.split()[1])].items()
        lines += [f"        -- {name}: {row.meaning}" for name, row in rows if name not in used]
    return "\n".join(lines) + "\n"
