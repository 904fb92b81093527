"""`rest-bridge check`: report everything that is wrong with route files, without a broker. Main thread."""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from amqtt_rest_bridge.cli import SECRETS_DIR, Paths, SecretsDir, count, counted, listed
from amqtt_rest_bridge.errors import Fault, FaultCode, Position, Severity

if TYPE_CHECKING:
    from amqtt_rest_bridge.lot.evaluation import Environment
    from amqtt_rest_bridge.lot.parsed_texts import ParsedTexts
    from amqtt_rest_bridge.lot.sources import Source

DESCRIPTION = """\
Read route files and report everything that is wrong with them, as the broker would at its start:

  path:line:column: error: message      keeps the broker from starting
  path:line:column: warning: message    works, but probably not as intended
  path:line:column: notice: message     worth knowing, such as a definition that is skipped

A route that needs a setting of the bridge gets a notice: only `rest-bridge serve -c FILE --check` reads the settings.
At most 200 faults are listed, by line; if there are more, errors are preferred, and a line counts the others.
Folders are searched for *.lot and *.lotnb. A place in a notebook is file.lotnb#cell:line:column; cells count from 1.
"""
EPILOG = """\
exit status:
  0  no errors (warnings and notices do not count)
  1  at least one error, with --strict at least one error or warning
  2  a path is missing or cannot be read, or the command is used wrongly

examples:
  rest-bridge check conf/routes
  rest-bridge check --strict conf/routes   (before a commit, and in CI)
  rest-bridge check --portable routes   (what Coreflux's parser refuses)
  rest-bridge check --format github conf/routes   (in a workflow of GitHub: annotations)
  rest-bridge check --json routes/a.lot notebooks/ | jq '.[] | select(.severity == "error")'
  API_KEY=x rest-bridge check --secrets-dir ./secrets routes   (what GET ENV and GET SECRET read must be there)
"""


class Format(StrEnum):
    """What `--format` takes."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


def run(
    paths: Paths,
    as_json: Annotated[bool, typer.Option("--json", help="print a JSON array of faults: --format json")] = False,
    form: Annotated[Format, typer.Option("--format", help="print lines, JSON, SARIF or annotations")] = Format.TEXT,
    portable: Annotated[bool, typer.Option("--portable", help="warn of what Coreflux's parser refuses")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="exit with 1 for warnings; also warn of literal credentials")
    ] = False,
    secrets_dir: SecretsDir = SECRETS_DIR,
) -> int:
    """Print the faults of all files, sorted."""
    from amqtt_rest_bridge.cli import fault_formats
    from amqtt_rest_bridge.lot import loader, sources  # which --help does not need
    from amqtt_rest_bridge.lot.evaluation import Environment
    from amqtt_rest_bridge.lot.parsed_texts import ParsedTexts

    read = sources.read(paths)
    environment, parsed = Environment(os.environ, secrets_dir), ParsedTexts()
    loaded = loader.load(read, environment, parsed)
    found = list(loaded.faults)
    if strict:
        found += _literal_credentials(read, parsed, environment)
    for route in loaded.routes:
        if route.is_lossless or route.config.use_ssl:  # it may need settings, which are not known here
            from amqtt_rest_bridge.settings import WorkerSettings

            for one in WorkerSettings().faults_of(route):
                severity = Severity.NOTICE if one.severity is Severity.ERROR else one.severity
                found.append(replace(one, severity=severity))
    is_explained = any(one.code is FaultCode.SKIPPED and one.severity is Severity.WARNING for one in found)
    if not loaded.routes and not loaded.has_errors and not is_explained:
        message, hint = "there is no route of type REST_API here", "write DEFINE ROUTE MyRoute WITH TYPE REST_API"
        found.append(Fault(paths[0], Position(1, 1), Severity.WARNING, message, hint, FaultCode.NO_ROUTE))
    if portable:
        from amqtt_rest_bridge.cli.portability import portability_warnings

        found += [fault for source in read for fault in portability_warnings(source)]
    faults = sources.in_order(found)
    shown, others = listed(faults)
    summary = f"{count(len(loaded.routes), 'usable route')}, {counted(faults) or 'no faults'}"
    if as_json:
        form = Format.JSON
    match form:
        case Format.JSON:
            print(fault_formats.json_of(shown))
        case Format.SARIF:
            print(fault_formats.sarif_of(shown))
        case Format.GITHUB:
            print("".join([f"{fault_formats.github_of(fault)}\n" for fault in shown]), end="")
        case Format.TEXT:
            texts = {source.path: source.text for source in read}
            columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            for fault in shown:
                print(fault_formats.text_of(fault, texts, columns))
    if others is not None:
        print(others, file=sys.stdout if form is Format.TEXT else sys.stderr)
    if form is Format.TEXT:
        print(summary)
    is_bad = loaded.has_errors or (strict and any(fault.severity is Severity.WARNING for fault in found))
    return 1 if is_bad else 0


def _literal_credentials(
    read: Iterable["Source"], parsed: "ParsedTexts", environment: "Environment"
) -> Iterator[Fault]:
    """Yield a warning for each credential in the text of a file."""
    from amqtt_rest_bridge.lot import sources
    from amqtt_rest_bridge.lot.literal_credentials import literal_credentials

    for source in read:
        report = sources.Report(source.path, source.text)
        for definition in parsed.parse(source.text).definitions:
            for one in literal_credentials(definition, environment, report):
                message = f"{one.holder} is written in the route file, where others can read it"
                report.warning(FaultCode.INSECURE, one.begin, message, one.hint, end=one.end)
        yield from report.faults
