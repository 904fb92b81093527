"""Settings, blocks and placeholders as other programs show them: texts, JSON, and a first route. Pure.

All of it is made from the rows of `settings_table` and `placeholders/kinds`.
"""

import textwrap
from typing import Any, Final

from amqtt_rest_bridge.lot.placeholders.kinds import PLACEHOLDERS, Mode, PlaceholderKind, recognise
from amqtt_rest_bridge.lot.settings_table import (
    IGNORED_BLOCK,
    PARAMETERS,
    ROUTE_TYPE,
    Applies,
    BlockKind,
    Kind,
    Parameter,
)

BLOCKS: Final[dict[str, str]] = {
    BlockKind.CONFIG: "what a route connects to; exactly one in a route",
    BlockKind.ROUTE_CONFIG: "how many messages a route holds, and what happens to others; at most one in a route",
    BlockKind.EVENT: "a message that sends a request, or a request that is published; any number in a route",
    IGNORED_BLOCK: "of other brokers: it is skipped",
}
"""What each block is."""
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
    lines = [row.meaning, *row.notes, *facts, *_example_of(row)]
    title = f"{row.name}: {kind}, {_MODES[row.applies]}\n"
    return title + "".join([f"{_LINE.fill(line)}\n" for line in lines])


def markdown_of(row: Parameter) -> str:
    """Return what there is to know of a setting as Markdown, for editors."""
    default = f", default `{row.default}`" if row.default is not None else ""
    mode = "" if row.applies is Applies.BOTH else f" ({_MODES[row.applies]})"
    notes = "".join(f"- {note}\n" for note in row.notes)
    lines = [f"**{row.name}**: {row.allowed}{default}{mode}", row.meaning, notes, "" if row.portable else "*ext*"]
    example = "\n".join(_example_of(row))
    return "\n\n".join([*filter(None, lines), f"```lot\n{example}\n```"])


def _example_of(row: Parameter) -> list[str]:
    """Return the lines of the example of a setting."""
    lines = (
        [f"WITH {row.name}", f"    {row.example}"] if row.kind is Kind.HEADERS else [f"WITH {row.name} {row.example}"]
    )
    return [*lines, *row.example_below]


def list_of_settings() -> str:
    """Return every setting with its value, in its block."""
    lines = []
    for kind, rows in PARAMETERS.items():
        lines += [f"{kind}\n", *(f"  {row.name:<24}{row.allowed}\n" for row in rows.values())]
    return "".join(lines)


def text_of_block(kind: BlockKind) -> str:
    """Return what a block is, and the meaning of each of its settings."""
    return f"{kind}: {BLOCKS[kind]}\n" + "".join(_entry(name, row.meaning) for name, row in PARAMETERS[kind].items())


def placeholders_named(text: str) -> list[PlaceholderKind]:
    """Return the placeholders that a text such as `value.json`, `topic.2` or `{response.header}` means, in any mode."""
    name = text.removeprefix("{").removesuffix("}")
    for written in (name, f"{name}.x", f"{name}.1"):
        roots = {(mode, found.root) for mode in Mode if (found := recognise(written, mode)) is not None}
        if kinds := [kind for kind in PLACEHOLDERS if any((mode, kind.root) in roots for mode in kind.modes)]:
            return kinds
    return []


def text_of_placeholder(kind: PlaceholderKind) -> str:
    """Return the forms of a placeholder, where it may be used and what it means."""
    meaning = f"{kind.meaning} ({_places_of(kind)})"
    if len(kind.written) == 1:
        return _entry(kind.written[0], meaning)
    return f"  {', '.join(kind.written)}\n{_entry('', meaning)}"


def _places_of(kind: PlaceholderKind) -> str:
    if kind.modes == (Mode.BATCH,):
        return "client mode, with BATCH_SIZE"
    if kind.modes == (Mode.RESULT,):
        return "client mode, in PAYLOAD and DESTINATION_TOPIC"
    client, server = Mode.CLIENT in kind.modes, Mode.SERVER in kind.modes
    return _MODES[Applies.BOTH if client and server else Applies.CLIENT if client else Applies.SERVER]


def _entry(name: str, meaning: str) -> str:
    """Return a name and its meaning, in lines of at most 100 characters."""
    return textwrap.fill(meaning, 100, initial_indent=f"  {name:<24}", subsequent_indent=" " * 26) + "\n"


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
