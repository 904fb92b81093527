"""`rest-bridge help`: what there is to know of a setting of the language. Main thread."""

import json
import sys
from typing import Annotated

import typer

from amqtt_rest_bridge.cli import own_name
from amqtt_rest_bridge.errors import on_one_line
from amqtt_rest_bridge.lot.hints import explain_unknown_setting, hint_of_settings
from amqtt_rest_bridge.lot.parameters import PARAMETERS, BlockKind
from amqtt_rest_bridge.lot.reference import json_of, list_of_settings, rows_of, text_of
from amqtt_rest_bridge.spelling import closest

DESCRIPTION = """\
Print what a setting of a route file means, its value, default and example, and what it requires and excludes.
Without a name: list the settings of all blocks.
"""
EPILOG = """\
exit status:
  0  printed
  2  no setting has this name

examples:
  rest-bridge help SOURCE_TOPIC
  rest-bridge help --json | jq '.[] | select(.portable) | .name'
"""


def _names(incomplete: str) -> list[str]:
    """Return the names of settings that begin so, for the shell."""
    return [name for rows in PARAMETERS.values() for name in rows if name.startswith(incomplete)]


def run(
    setting: Annotated[
        str | None, typer.Argument(metavar="SETTING", help="name of a setting, in any case", autocompletion=_names)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print a JSON array of objects")] = False,
) -> int:
    """Print one setting, or all."""
    every = [(kind, row) for kind, rows in PARAMETERS.items() for row in rows.values()]
    found = every if setting is None else rows_of(setting)
    if setting is not None and not found:
        meant = closest(setting, [row.name for _, row in every])
        kind = next((kind for kind, row in every if row.name == meant), BlockKind.EVENT)
        _, hint = explain_unknown_setting(setting, kind)
        if hint == hint_of_settings(kind):
            hint = f"{own_name()} help lists all; settings of the plugin are in the reference, under Configuration"
        print(f"rest-bridge help: unknown setting {on_one_line(setting)}\nhint: {hint}", file=sys.stderr)
        return 2
    if as_json:
        print(json.dumps([json_of(kind, row) for kind, row in found], indent=2, ensure_ascii=False))
    elif setting is None:
        print(list_of_settings(), end="")
    else:
        print("\n".join(text_of(kind, row) for kind, row in found), end="")
    return 0
