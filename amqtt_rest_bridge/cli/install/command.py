"""The command: a published template to checked route files in a folder. Main thread."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from amqtt_rest_bridge.cli import MOST_LISTED, SECRETS_DIR, SecretsDir, count, listed, several
from amqtt_rest_bridge.cli.install.effects import Effects, published_credentials
from amqtt_rest_bridge.cli.install.library import InstallError, Library, Template
from amqtt_rest_bridge.cli.install.placing import check_names, place, refuse_present
from amqtt_rest_bridge.errors import ConfigurationError, Fault, FaultCode, Severity, on_one_line, reason, visible
from amqtt_rest_bridge.language import loader, sources
from amqtt_rest_bridge.language.evaluation import Environment, RecordingEnvironment
from amqtt_rest_bridge.language.parsed_texts import ParsedTexts
from amqtt_rest_bridge.system import own_version

DEFAULT_LIBRARY = "http://127.0.0.1:8000"
DEFAULT_FOLDER = "conf/routes"
MAX_NOTEBOOK_BYTES = 1024 * 1024
_SHOWN = 100
_MOST_NAMED = 20
DESCRIPTION = """\
Fetch a published template from a template library and write its route files into a folder, where a running broker loads
them within seconds.

Every notebook is checked first, as by rest-bridge check, together with the files that are in the folder already. All
route files of the template are written, or none; existing files are kept unless --force is given.

The hosts that the routes call, the topics that they read and write, the ports that they listen on, and the variables
and secrets that they read are shown; on a terminal you are asked before anything is written. A variable or secret that
is missing does not keep the files from being written. A template whose text holds credentials, such as "change-me", is
refused unless --allow-sample-credentials is given: everybody can read them.
"""
EPILOG = """\
exit status:
  0  the route files are written
  1  they are not: no such template, the library cannot be asked, its notebooks have errors or hold credentials, a file
     exists, or the answer was no
  2  the folder cannot be read or written, or the command is used wrongly

examples:
  rest-bridge install weather-on-request
  rest-bridge install weather-on-request --from https://library.example --into routes --yes
  HTTPS_PROXY=http://proxy:3128 rest-bridge install weather-on-request --from https://library.example
"""


@dataclass(frozen=True, slots=True)
class _Checked:
    """The outcome of a check: route names by file, for files that hold routes; faults; what the routes read and do.

    `published` are the credentials that the texts hold, with their places.
    """

    routes: Mapping[str, list[str]]
    faults: tuple[Fault, ...]
    needs: RecordingEnvironment
    effects: Effects
    published: tuple[str, ...]


def run(
    slug: Annotated[str, typer.Argument(metavar="SLUG", help="slug or id of the template")],
    library: Annotated[str, typer.Option("--from", metavar="URL", help="address of the library")] = DEFAULT_LIBRARY,
    into: Annotated[Path, typer.Option(metavar="DIR", help="folder of route files")] = Path(DEFAULT_FOLDER),
    force: Annotated[bool, typer.Option("--force", help="replace files that exist")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    sample_credentials: Annotated[
        bool,
        typer.Option("--allow-sample-credentials", help="install a template whose text holds credentials"),
    ] = False,
    secrets_dir: SecretsDir = SECRETS_DIR,
) -> int:
    """Fetch, check, show and write the route files of a template; return the exit status."""
    template = Library(library, f"amqtt-rest-bridge/{own_version()}").template(slug)
    files = _files(template)
    checked = _check(files, into, secrets_dir)
    shown, others = listed(checked.faults)
    for line in (*shown, *([others] if others is not None else ())):
        print(line, file=sys.stderr)
    if errors := sum(fault.severity is Severity.ERROR for fault in checked.faults):
        message = f"the template has {count(errors, 'error')}; nothing was written"
        raise InstallError(message, "tell its author, or use another folder")
    if not checked.routes:
        message = "the template has no route of type REST_API; nothing was written"
        raise InstallError(message, "choose another one")
    if not force:
        refuse_present(into, checked.routes)
    if checked.published and not sample_credentials:
        raise InstallError(
            f"the template publishes {several(checked.published, _MOST_NAMED)}; nothing was written",
            "everybody can read them: --allow-sample-credentials installs them all the same, to be changed then",
        )
    for line in _plan(checked, into):
        print(line)
    question, err = f"Write into {visible(str(into))}?", not sys.stdout.isatty()
    if sys.stdin.isatty() and not yes and not typer.confirm(question, err=err):
        print("nothing was written", file=sys.stderr)
        return 1
    try:
        place(into, {name: files[name] for name in checked.routes}, force=force)
    except OSError as error:
        raise ConfigurationError(f"cannot write into {into}: {reason(error)}; nothing was written") from error
    print(f"written into {into}: {count(len(checked.routes), 'file')}")
    return 0


def _plan(checked: _Checked, into: Path) -> Iterator[str]:
    """Yield what would be written and what the routes would do."""
    for name, routes in checked.routes.items():
        yield f"{into / name}: {', '.join(f'route {route}' for route in routes)}"
    yield from checked.effects.lines()
    needs = checked.needs
    for kind, names in (("variable", needs.variables), ("secret", needs.secrets)):
        for name, error in sorted(names.items()):
            shown = on_one_line(name, _SHOWN)
            yield f"reads the {kind} {shown}: {'present' if error is None else f'missing; {error.hint}'}"
    if any(needs.variables.values()) or any(needs.secrets.values()):
        yield "The broker does not load these routes, or any other change, before what is missing is there."
    if checked.published:
        yield f"published with the template, to be changed: {several(checked.published, _MOST_NAMED)}"


def _files(template: Template) -> dict[str, bytes]:
    check_names([notebook.filename for notebook in template.notebooks])
    encoded = {each.filename: msgspec.json.encode(each.cells) for each in template.notebooks}
    for name, cells in encoded.items():
        if len(cells) > MAX_NOTEBOOK_BYTES:
            message = f"the notebook {name} has {len(cells)} bytes; at most {MAX_NOTEBOOK_BYTES} are allowed"
            raise InstallError(f"{message}; nothing was written", "tell the template's author")
    return {name: msgspec.json.format(cells, indent=2) + b"\n" for name, cells in encoded.items()}


def _check(files: Mapping[str, bytes], into: Path, secrets_dir: Path) -> _Checked:
    """Check files by themselves, for what they need, then after those of the folder, for names and endpoints in use."""
    parsed = ParsedTexts()
    found = {name: list(sources.of_content(str(into / name), content)) for name, content in files.items()}
    new = list(_readable((source for texts in found.values() for source in texts), parsed))
    needs, environment = RecordingEnvironment(os.environ, secrets_dir), Environment(os.environ, secrets_dir)
    loader.load(new, needs, parsed)
    loaded = loader.load([*_present(into, files), *new], environment, parsed)
    paths = {source.path for source in new}
    # Decision: notebooks without a route of our type, such as simulators, are of no use to the broker: not written.
    routes = {
        name: [each.name or "?" for text in texts if text.path in paths for each in parsed.parse(text.text).definitions]
        for name, texts in found.items()
    }
    routes = {name: names for name, names in routes.items() if names}
    effects = Effects()
    published: list[str] = []
    for source in new:
        report = sources.Report(source.path, source.text)
        for definition in parsed.parse(source.text).definitions:
            effects.add(definition)
            for credential, offset in published_credentials(definition, environment):
                place = report.position(offset)
                where = f"{source.path}:{place.line}:{place.column}"
                published.append(f"{credential} of {loader.title_of(definition)} ({where})")
    written = {source.path for name in routes for source in found[name]}
    faults = [each for each in loaded.faults if each.path in paths and each.code is not FaultCode.UNAVAILABLE]
    return _Checked(
        routes=routes,
        faults=tuple(each for each in faults if each.path in written or each.severity is not Severity.NOTICE),
        needs=needs,
        effects=effects,
        published=tuple(published),
    )


def _readable(texts: Iterable[sources.Source], parsed: ParsedTexts) -> Iterator[sources.Source]:
    """Yield texts until they have more errors than are listed: what is faulty throughout costs no more time."""
    errors = 0
    for source in texts:
        if errors <= MOST_LISTED:
            errors += sum(fault.severity is Severity.ERROR for fault in parsed.parse(source.text).faults)
            yield source


def _present(into: Path, files: Mapping[str, bytes]) -> tuple[sources.Source, ...]:
    """Read the route files of the folder, but those that would be replaced."""
    if not os.path.exists(into):  # noqa: PTH110  # Path.exists raises for a name that is too long
        return ()
    if not into.is_dir():
        raise ConfigurationError(f"{into} is not a folder")
    unreadable: list[OSError] = []
    paths = sources.find_route_files(into, unreadable.append)
    if unreadable:
        raise ConfigurationError(f"cannot read {into}: {reason(unreadable[0])}")
    return sources.read([path for path in paths if path.parent != into or path.name not in files])
