"""The command line `template-api`, also `python -m template_api`; runs in the main thread of its own process.

A command is a function whose annotations describe its options to typer; it returns the exit status. Results go to
standard output, errors to standard error. A command imports the rooms that it needs: `--help` needs no database.
"""

from amqtt_rest_bridge import interrupts  # isort: skip  # first: Ctrl-C ends what follows

import functools
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from amqtt_rest_bridge.cli import Command, as_written, command_line, on_any_streams, run_command_line
from template_api import __version__
from template_api.config import DEFAULT_THREADS, MOST_THREADS, Settings, variable_of
from template_api.errors import SettingsError, TemplateApiError, visible
from template_api.records import Status

if TYPE_CHECKING:
    from template_api.sources.reading import Reading

interrupts.raise_again()

_DESCRIPTION = "Serve a library of notebook templates over HTTP, and manage its content."
_EPILOG = """\
A first try, with the sample library:
  template-api import conf/library
  template-api serve
  curl 'http://127.0.0.1:8000/api/search?q=webhook'
"""
_SERVE_EPILOG = """\
An option overrides its environment variable. Put a database URL with a password into the variable: options are visible
to other users of the machine.

Limits: request bodies 64 KiB, headers 64 KiB, 1000 connections; one on which nothing moves for 30 s is closed.
SIGTERM and SIGINT: running requests get 5 s to finish. Any number of processes may serve one database; all of them
show a change made by import, publish, hide or draft within 2 s.

Exit status: 0 stopped by a signal, 1 cannot start (port, database, library), 2 another option or variable is wrong.

Examples:
  template-api serve --library conf/library
  template-api serve --port 8080 --base-url https://library.example --access-log -
"""
_IMPORT_EPILOG = """\
A template is a folder with template.yaml (title, slug, summary, category, difficulty, tags, status, ...), README.md
(its content) and any number of *.lotnb notebooks. A .jsonl file holds one template a line, with the same keys plus
content and notebooks: [{filename, is_primary, cells}].

Several PATHs are one import: --prune hides what none of them holds. An import waits for another one that runs.
--dry-run names up to 20 templates each that would be added, changed or hidden. --json prints {added, changed,
unchanged, failed, hidden, pruned, dry_run, faults: [{where, reason}], warnings, templates: {added, changed, hidden}}.

Each template is one transaction. One that cannot be read is reported with its file and line; the others are
imported.
Importing the same templates again changes nothing; changed cells make a new version of their notebook.

Exit status: 0 all imported, 1 a template failed or the import could not run, 2 usage.

Examples:
  template-api import conf/library
  template-api import library more.jsonl --prune --dry-run
"""
_STATES_EPILOG = """\
The library is the database of --database-url or TEMPLATE_API_DATABASE_URL; it is not created when it does not exist.
A process that serves it shows a change within 2 s. A state that was set by command stays until the template's source
gives another one than before.

Exit status: 0 done, 1 a template or the library was not found, 2 usage.

Examples:
  template-api list --status draft
  template-api hide weather-on-request
  template-api delete weather-on-request poll-price --yes
"""
_NAMED: Final = ("added", "changed", "hidden")  # outcomes whose templates a report names
_MOST_NAMED: Final = 20


def _setting(name: str, meaning: str, **limits: Any) -> Any:
    """Return the option of a setting, which is also read from its environment variable."""
    return typer.Option(envvar=variable_of(name), help=meaning, **limits)


Host = Annotated[str, _setting("host", "address to listen on; 0.0.0.0 opens it to the network")]
Port = Annotated[int, _setting("port", "port to listen on; 0 takes a free one, which the log names", min=0, max=65535)]
DatabaseUrl = Annotated[str, _setting("database_url", "sqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/NAME")]
Library = Annotated[str | None, _setting("library", "folder or .jsonl file to import when the database is empty")]
BaseUrl = Annotated[str | None, _setting("base_url", "public address of links (default: http://{host}:{port})")]
IndexDir = Annotated[str | None, _setting("index_dir", "no effect any more: the search index is in memory")]
LogEmptySearches = Annotated[bool, _setting("log_empty_searches", "log searches that find nothing, to add synonyms")]
Playground = Annotated[bool, _setting("playground", "serve /playground, where callers try definitions")]
Slugs = Annotated[list[str], typer.Argument(metavar="SLUG", help="slug or id of a template")]
Threads = Annotated[int, typer.Option(metavar="N", min=1, max=MOST_THREADS, help="requests answered at once")]
AccessLog = Annotated[
    str | None, typer.Option(metavar="FILE", help="write one line of JSON a request to FILE, - for standard output")
]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
Descriptor = Annotated[int | None, typer.Option(hidden=True)]


@on_any_streams("template-api", unwritten=1)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status: 0 done, 1 failed, 2 usage, 130 interrupted from the terminal."""
    return run_command_line(_application(), arguments, "template-api")


application = command_line(lambda: f"template-api {__version__}", _DESCRIPTION, _EPILOG, completes=False)


@functools.cache  # options are built slowly: once in a process that runs commands again, or forks others that do
def _application() -> Any:
    return typer.main.get_command(application)


def _command(name: str, summary: str, epilog: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return the decorator of a command, whose errors become one line on standard error and an exit status."""

    def add(run: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(run)
        def reported(**options: Any) -> None:
            try:
                exit_status = run(**options)
            except TemplateApiError as exc:
                print(f"template-api: {visible(str(exc))}", file=sys.stderr)
                exit_status = 2 if isinstance(exc, SettingsError) else 1
            except KeyboardInterrupt:  # what was imported until then stays
                print("template-api: interrupted", file=sys.stderr)
                exit_status = 130
            raise typer.Exit(exit_status)

        description, shown = f"{summary[0].upper()}{summary[1:]}.", as_written(epilog)
        application.command(name, cls=Command, help=description, short_help=summary, epilog=shown)(reported)
        return run

    return add


@_command("serve", "serve the API over HTTP", _SERVE_EPILOG)
def serve_library(
    host: Host = Settings.host,
    port: Port = Settings.port,
    database_url: DatabaseUrl = Settings.database_url,
    library: Library = None,
    base_url: BaseUrl = None,
    index_dir: IndexDir = None,
    log_empty_searches: LogEmptySearches = Settings.log_empty_searches,
    playground: Playground = Settings.playground,
    threads: Threads = DEFAULT_THREADS,
    access_log: AccessLog = None,
    log_level: LogLevel = "INFO",
    socket_fd: Descriptor = None,  # these two are what a supervisor hands over, see serving/supervisor.py
    link_fd: Descriptor = None,
) -> int:
    """Serve until a signal."""
    from template_api.serving import service

    logging.basicConfig(level=log_level, format="[%(asctime)s] :: %(levelname)s - %(message)s")
    settings = Settings(host, port, database_url, library, base_url, index_dir, log_empty_searches, playground)
    service.serve(settings, threads, access_log, socket_fd, link_fd)
    return 0


@_command("import", "bring template folders or .jsonl files into the library", _IMPORT_EPILOG)
def import_paths(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="folder (searched at any depth) or .jsonl file")],
    prune: Annotated[bool, typer.Option("--prune", help="hide the templates that no PATH holds")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="report what would be done, and change nothing")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the report as one JSON object")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress bar, no summary, only what is wrong")] = False,
    database_url: DatabaseUrl = Settings.database_url,
) -> int:
    """Import, report what was read, and print the summary; return 1 when a template failed."""
    from rich.console import Console
    from rich.progress import Progress

    from template_api.library import import_templates

    # Plain text: paths and keys may read as rich's markup, and a line that is wrapped cannot be searched for.
    console = Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)
    bar = Progress(console=console, transient=True, disable=quiet or not sys.stderr.isatty())
    task = bar.add_task("importing", total=None)
    faults: list[dict[str, str]] = []
    warnings: list[str] = []

    def observe(reading: "Reading") -> None:
        for warning in reading.warnings:
            console.print(warning)
            warnings.append(warning)
        for fault in reading.faults:
            console.print(f"{fault.where}: error: {fault.reason}")
            faults.append({"where": fault.where, "reason": fault.reason})
        bar.update(task, completed=reading.done, total=reading.total)

    with bar:
        report = import_templates(database_url, paths, prune=prune, dry_run=dry_run, observe=observe)
    named = {outcome: names for outcome, names in report.names.items() if outcome in _NAMED}
    if as_json:
        counts = {outcome: len(names) for outcome, names in report.names.items()}
        more = {"pruned": report.pruned, "dry_run": dry_run, "faults": faults, "warnings": warnings}
        print(json.dumps({**counts, **more, "templates": named}, ensure_ascii=False))
    elif not quiet:
        for outcome, names in named.items() if dry_run else ():
            shown = [*names[:_MOST_NAMED], *(["..."] if len(names) > _MOST_NAMED else [])]
            if shown:
                print(f"{outcome}: {visible(', '.join(shown))}")
        print(f"{report}{'; nothing was changed (dry run)' if dry_run else ''}")
    if not report.pruned:
        print("template-api: nothing was pruned, because a template failed", file=sys.stderr)
    return 1 if report.failed else 0


def _add_state_command(name: str, status: Status, summary: str) -> None:
    """Add the command that brings templates into a state."""

    @_command(name, summary, _STATES_EPILOG)
    def change_state(templates: Slugs, database_url: DatabaseUrl = Settings.database_url) -> int:
        return _change_templates(templates, database_url, status)


_add_state_command("publish", Status.PUBLISHED, "make templates visible through the API")
_add_state_command("hide", Status.HIDDEN, "take templates out of the API, until they are published")
_add_state_command("draft", Status.DRAFT, "mark templates as unfinished, which takes them out of the API")


@_command("delete", "delete templates with all versions of their notebooks", _STATES_EPILOG)
def delete_templates(
    templates: Slugs,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    database_url: DatabaseUrl = Settings.database_url,
) -> int:
    """Delete templates, after a question on a terminal."""
    # Without a terminal nothing is deleted unless --yes says so.
    if not yes and not (sys.stdin.isatty() and typer.confirm(f"Delete {', '.join(map(visible, templates))} for good?")):
        print("template-api: nothing was deleted; --yes deletes without a question", file=sys.stderr)
        return 1
    return _change_templates(templates, database_url, None)


def _change_templates(templates: Sequence[str], database_url: str, status: Status | None) -> int:
    """Bring templates of a library that exists into a state, None deletes them; print what was done, and each error."""
    from template_api.library import delete_template, require_database, set_status

    require_database(database_url)
    failed = False
    for name in templates:
        try:
            if status is None:
                delete_template(database_url, name)
                done = "deleted"
            else:
                done = f"{'now' if set_status(database_url, name, status) else 'already'} {status.value}"
            print(f"{visible(name)}: {done}")
        except TemplateApiError as exc:
            print(f"template-api: {exc}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


@_command("list", "show the templates of the library, in every state", _STATES_EPILOG)
def list_templates(
    status: Annotated[Status | None, typer.Option(help="only those in this state")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line instead of a table")] = False,
    database_url: DatabaseUrl = Settings.database_url,
) -> int:
    """Print the templates, one a line."""
    from template_api.library import listed_templates, require_database

    require_database(database_url)
    template = None
    for template in listed_templates(database_url, status):
        if as_json:
            print(json.dumps(template._asdict(), ensure_ascii=False))
        else:
            day = (template.published_at or "-")[:10]
            name, title = template.slug or template.id, visible(template.title)
            print(f"{template.status:<10}{day:<12}{template.difficulty or '-':<14}{name:<40} {title}")
    if template is None and status is None:
        print("template-api: the library is empty; fill it with template-api import PATH", file=sys.stderr)
    return 0
