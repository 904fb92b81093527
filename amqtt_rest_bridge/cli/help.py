"""`rest-bridge help`: what there is to know of a setting, block or placeholder of the language. Main thread."""

import json
import sys
from typing import Annotated

import typer

from amqtt_rest_bridge.cli import own_name
from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.lot import reference
from amqtt_rest_bridge.lot.hints import explain_unknown_setting, hint_of_settings
from amqtt_rest_bridge.lot.placeholders.kinds import PLACEHOLDERS
from amqtt_rest_bridge.lot.settings_table import PARAMETERS, BlockKind
from amqtt_rest_bridge.spelling import closest, did_you_mean

_ALL_PLACEHOLDERS = "placeholders"
DESCRIPTION = """\
Print what a setting of a route file means, its value, default and example, and what it requires and excludes; or the
settings of a block with their meaning; or what a placeholder is. Without a name: list the settings of all blocks.
"""
EPILOG = """\
exit status:
  0  printed
  2  no setting, block or placeholder has this name

examples:
  rest-bridge help SOURCE_TOPIC
  rest-bridge help EVENT
  rest-bridge help placeholders
  rest-bridge help value.json
  rest-bridge help --json | jq '.[] | select(.portable) | .name'
"""


def _names(incomplete: str) -> list[str]:
    """Return the names of settings and blocks that begin so, for the shell."""
    names = [name for rows in PARAMETERS.values() for name in rows]
    return [name for name in (*names, *BlockKind, _ALL_PLACEHOLDERS) if name.startswith(incomplete)]


def run(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="a setting or block, in any case; a placeholder; placeholders", autocompletion=_names
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print a JSON array of objects")] = False,
) -> int:
    """Print one setting, block or placeholder, or all settings."""
    every = [(kind, row) for kind, rows in PARAMETERS.items() for row in rows.values()]
    block = next((kind for kind in BlockKind if name is not None and kind == name.upper()), None)
    found = every if name is None else reference.rows_of(name)
    if block is not None:
        found = [one for one in every if one[0] is block]
    placeholders = [*PLACEHOLDERS] if name == _ALL_PLACEHOLDERS else []
    if name is not None and not found and not placeholders:
        placeholders = reference.placeholders_named(name)
    if name is not None and not found and not placeholders:
        print(f"rest-bridge help: unknown setting {on_one_line(name)}\nhint: {_hint(name)}", file=sys.stderr)
        return 2
    if as_json:
        objects = [reference.json_of(kind, row) for kind, row in found]
        objects += [{"written": one.written, "modes": one.modes, "meaning": one.meaning} for one in placeholders]
        print(json.dumps(objects, indent=2, ensure_ascii=False))
    elif placeholders:
        print("".join([reference.text_of_placeholder(one) for one in placeholders]), end="")
    elif block is not None:
        print(reference.text_of_block(block), end="")
    elif name is None:
        print(reference.list_of_settings(), end="")
    else:
        print("\n".join(reference.text_of(kind, row) for kind, row in found), end="")
    return 0


def _hint(name: str) -> str:
    """Return what may be meant by an unknown name."""
    every = [(kind, row) for kind, rows in PARAMETERS.items() for row in rows.values()]
    meant = closest(name, [row.name for _, row in every])
    kind = next((kind for kind, row in every if row.name == meant), BlockKind.EVENT)
    _, hint = explain_unknown_setting(name, kind)
    if hint == hint_of_settings(kind):
        lists = f"{own_name()} help lists all; settings of the plugin are in the reference, under Configuration"
        return did_you_mean(name, [*BlockKind, _ALL_PLACEHOLDERS]) or lists
    return hint
