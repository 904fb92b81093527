"""`rest-bridge install`: fetch a published template, check its route files and write them. Main thread."""

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from amqtt_rest_bridge.cli import MOST_LISTED, SECRETS_DIR, SecretsDir, count, listed, several
from amqtt_rest_bridge.cli.library import InstallError, Library, Notebook
from amqtt_rest_bridge.errors import ConfigurationError, Fault, FaultCode, Severity, on_one_line, reason, visible
from amqtt_rest_bridge.lot import loader, sources
from amqtt_rest_bridge.lot.definitions import Block, Definition
from amqtt_rest_bridge.lot.evaluation import Environment, NameEnvironment, evaluate
from amqtt_rest_bridge.lot.literal_credentials import literal_credentials
from amqtt_rest_bridge.lot.model import RestApiConfig
from amqtt_rest_bridge.lot.parsed_texts import ParsedTexts
from amqtt_rest_bridge.lot.sources import Report

DEFAULT_LIBRARY = "http://127.0.0.1:8000"
DEFAULT_FOLDER = "conf/routes"
MAX_NOTEBOOK_BYTES = 1024 * 1024
_LONGEST_SECRET_NAME = 100  # characters that are printed of the name of a secret or variable
_MOST_CREDENTIALS = 20  # that are printed
_READ_TOPICS: Final = ("SOURCE_TOPIC", "REPLY_TOPIC")
_WRITTEN_TOPICS: Final = ("DESTINATION_TOPIC", "ERROR_TOPIC")
_CALLED_ADDRESSES: Final = ("BASE_ADDRESS", "OAUTH2_TOKEN_URL")
_HOST: Final = re.compile(r"(?:https?://)?(?:[^/@]*@)?([^/?#]*)", re.IGNORECASE)
_LONGEST_EFFECT: Final = 200  # characters that are printed of a host, topic or port
_MOST_EFFECTS: Final = 50  # of one kind that are printed
_LONGEST_FILE_NAME: Final = 255
_OVERWRITE_HINT: Final = "--force replaces it, --into names another folder"
DESCRIPTION = """\
Fetch a published template from a template library and write its route files into a folder, where a running broker loads
them within seconds. On a terminal you are asked before anything is written; without one they are written at once. A
missing folder is made.

Every notebook is checked first, as by rest-bridge check, together with the files that are in the folder already. All
route files of the template are written, or none; existing files are kept unless --force is given.

The hosts that the routes call, the topics that they read and write, the ports that they listen on, and the variables
and secrets that they read are shown. A variable or secret that is missing does not keep the files from being written. A
template whose text holds credentials, such as "change-me", is refused unless --allow-sample-credentials is given:
everybody can read them.
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


@dataclass(slots=True)
class Effects:
    """What routes would do: the hosts that they call, the topics that they read and write, the ports that they open.

    They are read from the text, with the names of variables and secrets in place of their values, so that an effect is
    shown even if its variable is missing here.
    """

    hosts: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    ports: set[str] = field(default_factory=set)

    def add(self, definition: Definition) -> None:
        """Add what a route would do."""
        for block in definition.blocks:
            if _is_on(block, "ENABLE_CLIENT"):
                addresses = (_setting_text(block, name) for name in _CALLED_ADDRESSES)
                self.hosts |= {found[1] for each in addresses if each and (found := _HOST.match(each))}
            if _is_on(block, "ENABLE_SERVER"):
                self.ports.add(_setting_text(block, "SERVER_PORT") or str(RestApiConfig().server_port))
            self.reads |= {topic for name in _READ_TOPICS if (topic := _setting_text(block, name))}
            self.writes |= {topic for name in _WRITTEN_TOPICS if (topic := _setting_text(block, name))}

    def lines(self) -> Iterator[str]:
        """Yield a line for each kind of effect."""
        for what, names in (
            ("calls", self.hosts),
            ("reads the topics", self.reads),
            ("writes the topics", self.writes),
            ("listens on the ports", self.ports),
        ):
            if names:
                printed = [on_one_line(name, _LONGEST_EFFECT) for name in sorted(names)]
                yield f"{what}: {several(printed, _MOST_EFFECTS)}"


@dataclass(frozen=True, slots=True)
class _CheckedFiles:
    """The outcome of a check.

    `routes` are the names of the routes of each file that has any. `needs` are the variables and secrets that they
    read, `published` the credentials in their texts, with file, line and column.
    """

    routes: Mapping[str, list[str]]
    faults: tuple[Fault, ...]
    needs: Environment
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
    files = _files_of(Library(library).template(slug).notebooks)
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
        refuse_existing(into, checked.routes)
    if checked.published and not sample_credentials:
        raise InstallError(
            f"the template publishes {several(checked.published, _MOST_CREDENTIALS)}; nothing was written",
            "everybody can read them: --allow-sample-credentials installs them all the same, to be changed then",
        )
    for line in _plan(checked, into):
        print(line)
    where = f"{'' if os.path.lexists(into) else 'the new folder '}{into}"
    question, err = f"Write into {visible(where)}?", not sys.stdout.isatty()
    if sys.stdin.isatty() and not yes and not typer.confirm(question, err=err):
        print("nothing was written", file=sys.stderr)
        return 1
    try:
        write_files(into, {name: files[name] for name in checked.routes}, force=force)
    except OSError as error:
        raise ConfigurationError(f"cannot write into {into}: {reason(error)}; nothing was written") from error
    print(f"written into {where}: {count(len(checked.routes), 'file')}")
    return 0


def _plan(checked: _CheckedFiles, into: Path) -> Iterator[str]:
    """Yield what would be written and what the routes would do."""
    for name, routes in checked.routes.items():
        yield f"{into / name}: {', '.join(f'route {route}' for route in routes)}"
    yield from checked.effects.lines()
    needs = checked.needs
    for kind, names in (("variable", needs.variables), ("secret", needs.secrets)):
        for name, error in sorted(names.items()):
            shown = on_one_line(name, _LONGEST_SECRET_NAME)
            yield f"reads the {kind} {shown}: {'present' if error is None else f'missing; {error.hint}'}"
    if any(needs.variables.values()) or any(needs.secrets.values()):
        yield "The broker does not load these routes, or any other change, before what is missing is there."
    if checked.published:
        yield f"published with the template, to be changed: {several(checked.published, _MOST_CREDENTIALS)}"


def _files_of(notebooks: Sequence[Notebook]) -> dict[str, bytes]:
    """Return the files of a template; raises `InstallError` for one that cannot be installed."""
    check_names([one.filename for one in notebooks])
    files: dict[str, bytes] = {}
    for one in notebooks:
        cells = msgspec.json.encode(one.cells)
        if len(cells) > MAX_NOTEBOOK_BYTES:
            message = f"the notebook {one.filename} has {len(cells)} bytes; at most {MAX_NOTEBOOK_BYTES} are allowed"
            raise InstallError(f"{message}; nothing was written", "tell the template's author")
        files[one.filename] = msgspec.json.format(cells, indent=2) + b"\n"
    return files


def _check(files: Mapping[str, bytes], into: Path, secrets_dir: Path) -> _CheckedFiles:
    """Load the files twice: alone to find what they need, then with the files of the folder to find all faults."""
    parsed = ParsedTexts()
    by_file = {name: list(sources.sources_of(str(into / name), content)) for name, content in files.items()}
    new: list[sources.Source] = []
    errors = 0
    for source in chain.from_iterable(by_file.values()):
        if errors <= MOST_LISTED:  # more would not be printed
            errors += sum(fault.severity is Severity.ERROR for fault in parsed.parse(source.text).faults)
            new.append(source)
    needs, environment = Environment(os.environ, secrets_dir), Environment(os.environ, secrets_dir)
    loader.load(new, needs, parsed)
    loaded = loader.load([*_read_existing(into, files), *new], environment, parsed)
    paths = {source.path for source in new}
    definitions = [(source, each) for source in new for each in parsed.parse(source.text).definitions]
    # Notebooks without a REST_API route, such as simulators, are not written: the broker has no use for them.
    routes = {
        name: [each.name or "?" for source, each in definitions if source in of_file]
        for name, of_file in by_file.items()
    }
    routes = {name: names for name, names in routes.items() if names}
    effects = Effects()
    for _, definition in definitions:
        effects.add(definition)
    written = {source.path for name in routes for source in by_file[name]}
    faults = [each for each in loaded.faults if each.path in paths and each.code is not FaultCode.UNAVAILABLE]
    return _CheckedFiles(
        routes=routes,
        faults=tuple(each for each in faults if each.path in written or each.severity is not Severity.NOTICE),
        needs=needs,
        effects=effects,
        published=tuple(_published_credentials(definitions, environment)),
    )


def _published_credentials(
    definitions: Iterable[tuple[sources.Source, Definition]], environment: Environment
) -> Iterator[str]:
    """Yield each credential in the texts of definitions, with its route, file, line and column."""
    for source, definition in definitions:
        report = Report(source.path, source.text)
        for credential in literal_credentials(definition, environment, report):
            place = report.position(credential.begin)
            where = f"{source.path}:{place.line}:{place.column}"
            yield f"{credential.holder} of {loader.title_of(definition)} ({where})"


def _read_existing(into: Path, files: Mapping[str, bytes]) -> tuple[sources.Source, ...]:
    """Read the route files of the folder, without those that would be replaced."""
    if not os.path.exists(into):  # noqa: PTH110  # Path.exists raises for a name that is too long
        return ()
    if not into.is_dir():
        raise ConfigurationError(f"{into} is not a folder")
    unreadable: list[OSError] = []
    paths = sources.find_route_files(into, unreadable)
    if unreadable:
        raise ConfigurationError(f"cannot read {into}: {reason(unreadable[0])}")
    return sources.read([path for path in paths if path.parent != into or path.name not in files])


def _is_on(block: Block, name: str) -> bool:
    """Return whether a mode is on, or may be on since a variable sets it."""
    shown = _setting_text(block, name)
    return shown is not None and (shown.lower() == "true" or "{" in shown)


def _setting_text(block: Block, name: str) -> str | None:
    """Return the text of a setting, with the names of variables and secrets; None if the block does not have it."""
    node = block.settings.get(name)
    if node is None:
        return None
    value = evaluate(tuple(node.pieces), NameEnvironment({}, Path()), Report("", ""))
    return "" if value is None else "".join(part if isinstance(part, str) else part.label for part in value.parts)


# Files are written into one folder: all of them or none, and none outside of it.


def check_names(names: Sequence[str]) -> None:
    """Check that the names in a template are plain file names of notebooks, without a path.

    Raises:
        InstallError: a name is something else, or two are the same.
    """
    for name in names:
        separated = any(char in name for char in "/\\:")
        too_long = len(name.encode(errors="replace")) > _LONGEST_FILE_NAME
        if separated or too_long or not name.isprintable() or name != name.strip() or name.startswith("."):
            raise InstallError(
                f"the notebook {visible(name[:_LONGEST_FILE_NAME])!r} has a name that is not the plain name of a file",
                "tell the template's author; nothing was written",
            )
        if not name.lower().endswith(".lotnb"):
            raise InstallError(f"the notebook {name!r} does not end in .lotnb", "tell the template's author")
    if len({name.casefold() for name in names}) < len(names):  # some file systems ignore case
        raise InstallError("two notebooks of the template have one name", "tell the template's author")


def refuse_existing(folder: Path, names: Iterable[str]) -> None:
    """Raise `InstallError` when one of these files exists."""
    if present := [name for name in names if os.path.lexists(folder / name)]:
        raise InstallError(f"{folder / present[0]} exists", _OVERWRITE_HINT)


def write_files(folder: Path, files: Mapping[str, bytes], *, force: bool) -> None:
    """Write files into a folder; the folder is made if it is missing.

    Args:
        folder: Where they go.
        files: Their contents, by names that `check_names` has passed.
        force: Replace those that exist; a symbolic link is replaced, not followed.

    Raises:
        InstallError: a file exists. Nothing has changed.
        OSError: the files cannot be written. Nothing has changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not force:
        refuse_existing(folder, files)
    staging = Path(tempfile.mkdtemp(prefix=".install-", dir=folder))
    undo = contextlib.ExitStack()
    try:
        for name, content in files.items():
            with (staging / name).open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        with undo:
            for name in files:
                staged, target = staging / name, folder / name
                if force and os.path.lexists(target):
                    kept = staging / f"{name}.kept"
                    os.link(target, kept, follow_symlinks=False)
                    staged.replace(target)
                    undo.callback(kept.replace, target)
                    continue
                try:
                    os.link(staged, target)
                except FileExistsError as error:
                    raise InstallError(f"{target} exists", _OVERWRITE_HINT) from error
                undo.callback(target.unlink)
            undo.pop_all()
    finally:
        shutil.rmtree(staging, ignore_errors=True)
