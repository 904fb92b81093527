"""The command line of the template API: `template-api`, also `python -m template_api`."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from template_api.config import (
    DEFAULT_DATABASE_URL,
    DEFAULT_HOST,
    DEFAULT_PORT,
    DEFAULT_THREADS,
    ENVIRONMENT_PREFIX,
    MOST_THREADS,
    Settings,
    environment_settings,
    port_number,
)
from template_api.errors import SettingsError, TemplateApiError
from template_api.records import Status

_DESCRIPTION = "Serve a library of notebook templates over HTTP, and look after what is in it."
_EPILOG = """\
A first try, with the sample library:
  template-api import conf/library
  template-api serve
  curl 'http://127.0.0.1:8000/api/search?q=webhook'
"""
_SERVE_EPILOG = f"""\
Each of the first five options may also be given as an environment variable: {ENVIRONMENT_PREFIX}HOST,
{ENVIRONMENT_PREFIX}PORT, {ENVIRONMENT_PREFIX}DATABASE_URL, {ENVIRONMENT_PREFIX}LIBRARY, {ENVIRONMENT_PREFIX}BASE_URL.
An option wins over its variable. A database URL that holds a password belongs in the variable: options can be seen by
other users of the machine.

Limits: request bodies 64 KiB, headers 64 KiB, 30 s for a request to arrive, 1000 connections;
a caller that reads nothing of its answer for 30 s is cut off.
SIGTERM and SIGINT let running requests finish, 5 s at most. Any number of processes may serve one database; a change
made by import, publish, hide or draft is seen by all of them within 2 s.

Exit status: 0 stopped by a signal, 1 cannot start, 2 an option or variable is wrong.
"""
_IMPORT_EPILOG = """\
A template is a folder with template.yaml (title, slug, summary, category, difficulty, tags, status, ...), README.md
(its content) and any number of *.lotnb notebooks. A .jsonl file holds one template a line, with the same keys plus
content and notebooks: [{filename, is_primary, cells}].

Each template is one transaction. One that cannot be read is reported with its file and line, the others go on.
Importing the same templates again changes nothing; changed cells make a new version of their notebook.

Exit status: 0 all imported, 1 a template failed or the import could not run, 2 usage.
"""
_STATES: Mapping[str, tuple[Status, str]] = {
    "publish": (Status.PUBLISHED, "make templates visible through the API"),
    "hide": (Status.HIDDEN, "take templates out of the API; they are answered as not found"),
    "draft": (Status.DRAFT, "mark templates as unfinished; they are answered as not found"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: the words after the program's name; those of the process when None.

    Returns:
        The exit status: 0 done, 1 failed, 2 usage, 130 interrupted from the terminal.
    """
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.run
    try:
        return command(options)
    except SettingsError as exc:
        print(f"template-api: {exc}", file=sys.stderr)
        return 2
    except TemplateApiError as exc:
        print(f"template-api: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # what was imported until then stays
        print("template-api: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "template-api", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"template-api {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_serve(commands)
    _add_import(commands)
    for name, (status, text) in _STATES.items():
        command = _command(commands, name, text, _set_status)
        command.add_argument("templates", metavar="SLUG", nargs="+", help="slug or id of a template")
        command.set_defaults(status=status)
        _add_database(command)
    command = _command(commands, "list", "show the templates of the library, in every state", _list)
    command.add_argument("--status", choices=[each.value for each in Status], help="only those in this state")
    command.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    _add_database(command)
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int],
    epilog: str | None = None,
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def _add_serve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    serve = _command(commands, "serve", "serve the API over HTTP", _serve, _SERVE_EPILOG)
    add = serve.add_argument
    add("--host", help=f"address to listen on; 0.0.0.0 opens it to the network (default {DEFAULT_HOST})")
    add("--port", help=f"port to listen on; 0 takes a free one and says which (default {DEFAULT_PORT})")
    _add_database(serve)
    add("--library", metavar="PATH", help="folder or .jsonl file to import first, when the database is empty")
    add("--base-url", metavar="URL", help="public address, for the url of templates (default http://HOST:PORT)")
    threads = f"requests answered at once, 1 to {MOST_THREADS} (default {DEFAULT_THREADS})"
    add("--threads", type=int, default=DEFAULT_THREADS, metavar="N", help=threads)
    add("--access-log", metavar="FILE", help="write one line of JSON for each request to FILE, - for standard output")
    add("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="default INFO")
    # The two ends that a process which runs this one hands over: see supervisor.py.
    add("--socket-fd", type=int, help=argparse.SUPPRESS)
    add("--link-fd", type=int, help=argparse.SUPPRESS)


def _add_import(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = _command(
        commands, "import", "bring template folders or .jsonl files into the library", _import, _IMPORT_EPILOG
    )
    command.add_argument("path", metavar="PATH", type=Path, help="folder (searched at any depth) or .jsonl file")
    command.add_argument("--prune", action="store_true", help="hide the templates that PATH does not hold")
    command.add_argument("--quiet", action="store_true", help="no progress bar and no summary, only what is wrong")
    _add_database(command)


def _add_database(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--database-url",
        metavar="URL",
        help=f"sqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/NAME (default {DEFAULT_DATABASE_URL})",
    )


def _settings(options: argparse.Namespace) -> Settings:
    given = environment_settings(os.environ)
    for name in ("host", "port", "database_url", "library", "base_url"):
        value = getattr(options, name, None)
        if value is not None:
            given[name] = port_number(value, "--port") if name == "port" else value
    return Settings(**given)  # type: ignore[arg-type]  # the values' types follow their names


def _serve(options: argparse.Namespace) -> int:
    from template_api.serving import service  # the other commands start faster without the server

    logging.basicConfig(level=options.log_level, format="[%(asctime)s] :: %(levelname)s - %(message)s")
    service.serve(
        _settings(options),
        service.Options(options.threads, options.access_log, options.socket_fd, options.link_fd),
    )
    return 0


def _import(options: argparse.Namespace) -> int:
    from template_api.library import import_templates  # `--help` needs no database
    from template_api.progress import Progress

    progress = Progress(sys.stderr, quiet=options.quiet)
    report = import_templates(_settings(options).database_url, options.path, prune=options.prune, observe=progress.show)
    progress.end()
    if not options.quiet:
        print(f"{report}")
    if not report.pruned:
        print("template-api: nothing was pruned, because a template failed", file=sys.stderr)
    return 1 if report.failed else 0


def _set_status(options: argparse.Namespace) -> int:
    from template_api.library import require_database, set_status  # `--help` needs no database

    url = _settings(options).database_url
    require_database(url)
    failed = False
    for name in options.templates:
        try:
            changed = set_status(url, name, options.status)
        except TemplateApiError as exc:
            print(f"template-api: {exc}", file=sys.stderr)
            failed = True
        else:
            print(f"{name}: {'now' if changed else 'already'} {options.status.value}")
    return 1 if failed else 0


def _list(options: argparse.Namespace) -> int:
    from template_api.library import listed_templates, require_database  # `--help` needs no database

    status = Status(options.status) if options.status else None
    url = _settings(options).database_url
    require_database(url)
    for template in listed_templates(url, status):
        if options.json:
            print(json.dumps(asdict(template), ensure_ascii=False))
        else:
            day = (template.published_at or "-")[:10]
            title = "".join(letter if letter.isprintable() else "?" for letter in template.title)
            name = template.slug or template.id
            print(f"{template.status:<10}{day:<12}{template.difficulty or '-':<14}{name:<40} {title}")
    return 0


def _version() -> str:
    try:
        return version("amqtt-rest-bridge")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
