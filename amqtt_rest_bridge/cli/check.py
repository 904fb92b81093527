"""`rest-bridge check`: report everything that is wrong with route files, without a broker. Main thread."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from amqtt_rest_bridge.cli import SECRETS_DIR, Paths, SecretsDir, count, counted, listed
from amqtt_rest_bridge.errors import Fault, FaultCode, Position, Severity

DESCRIPTION = """\
Read route files and report everything that is wrong with them, as the broker would at its start:

  path:line:column: error: message      keeps the broker from starting
  path:line:column: warning: message    works, but probably not as intended
  path:line:column: notice: message     worth knowing, such as a definition that is skipped

The plugin's settings, such as the spool of lossless routes, are validated by `rest-bridge serve -c FILE --check`.
At most 200 faults are listed, errors before others; a line says how many more there are.
Folders are searched for *.lot and *.lotnb. A place in a notebook is file.lotnb#cell:line:column; cells count from 1.
"""
EPILOG = """\
exit status:
  0  no errors (warnings and notices do not count)
  1  at least one error
  2  a path is missing or cannot be read, or the command is used wrongly

examples:
  rest-bridge check conf/routes
  rest-bridge check --json routes/a.lot notebooks/ | jq '.[] | select(.severity == "error")'
  API_KEY=x rest-bridge check --secrets-dir ./secrets routes   (what GET ENV and GET SECRET read must be there)
"""


def run(
    paths: Paths,
    as_json: Annotated[bool, typer.Option("--json", help="print a JSON array of faults instead of lines")] = False,
    secrets_dir: SecretsDir = Path(SECRETS_DIR),
) -> int:
    """Print the faults of all files, sorted."""
    from amqtt_rest_bridge.language import loader, sources  # which --help does not need
    from amqtt_rest_bridge.language.evaluation import Environment

    loaded = loader.load(sources.read(paths), Environment(os.environ, secrets_dir))
    faults = loaded.faults
    if not loaded.routes and not loaded.has_errors:
        message, hint = "there is no route of type REST_API here", "write DEFINE ROUTE MyRoute WITH TYPE REST_API"
        faults += (Fault(paths[0], Position(1, 1), Severity.WARNING, message, hint, FaultCode.NO_ROUTE),)
    shown, others = listed(faults)
    if as_json:
        objects = [
            {"path": one.path, **asdict(one.position)}
            | {"severity": one.severity, "message": one.message, "hint": one.hint}
            for one in shown
        ]
        print(json.dumps(objects, indent=2, ensure_ascii=False))
        if others is not None:
            print(others, file=sys.stderr)
    else:
        for fault in shown:
            print(fault)
        if others is not None:
            print(others)
        print(f"{count(len(loaded.routes), 'usable route')}, {counted(faults) or 'no faults'}")
    return 1 if loaded.has_errors else 0
