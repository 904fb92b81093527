"""The commands of `rest-bridge`, a module each, and what several of them share. Main thread.

The module of a command has its name, but for `dry_run` (`try`) and `route_tests` (`test`). `__main__` calls its
function `run`, whose annotations describe the options to typer, and which returns the exit status. `DESCRIPTION` and
`EPILOG` are printed by `--help` as written. Results go to standard output, errors to standard error.

`admin_client` and `broker_client` are shared by the commands that ask a running bridge or its broker, `configuration`
and `logs` by those that run one, `yaml_files` by all that read YAML.
`template-api` uses `on_any_streams`, `command_line`, `Command` and `as_written`, too.
"""

import contextlib
import errno
import functools
import io
import os
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, ParamSpec

import typer
import typer.core

from amqtt_rest_bridge.errors import ConfigurationError, Fault, HintedError, Severity
from amqtt_rest_bridge.sizes import size_text
from amqtt_rest_bridge.spelling import closest

if TYPE_CHECKING:
    import ssl  # which most commands do without

SECRETS_DIR = Path("/run/secrets")
MOST_LISTED = 200
"""Faults that a check lists; the others are counted."""
_Arguments = ParamSpec("_Arguments")
_EXPIRED: Final = 10  # OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED
_OUTPUT_ERRORS: Final = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}

Paths = Annotated[list[str], typer.Argument(metavar="PATH", help="route file, notebook or folder")]
SecretsDir = Annotated[Path, typer.Option(metavar="DIR", help='folder in which GET SECRET "X" reads the file X')]
CaFile = Annotated[str | None, typer.Option(metavar="FILE", help="TLS: authorities, PEM")]
CertFile = Annotated[str | None, typer.Option(metavar="FILE", help="TLS: certificate of this client, PEM")]
KeyFile = Annotated[str | None, typer.Option(metavar="FILE", help="TLS: its key, PEM")]


class CommandError(HintedError):
    """A command cannot do what it was asked. Its message and hint are printed, and the exit status is 1."""


def on_any_streams(program: str, *, unwritten: int) -> Callable[[Callable[_Arguments, int]], Callable[_Arguments, int]]:
    """Return the decorator of a `main` that shows no traceback when a standard stream is closed, full or not UTF-8.

    The exit status is then 1 if the reader of the output has closed the pipe, and `unwritten` if the output cannot be
    written. After Ctrl-C it is 130.
    """

    def decorator(run: Callable[_Arguments, int]) -> Callable[_Arguments, int]:
        @functools.wraps(run)
        def main(*args: _Arguments.args, **options: _Arguments.kwargs) -> int:
            # What the shell closed is opened, so that no other file gets the descriptor of a standard stream.
            for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
                if getattr(sys, name) is None:
                    setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  # for as long as the process
            out = sys.stdout
            if isinstance(out, io.TextIOWrapper) and (out.errors == "strict" or "utf" not in out.encoding.lower()):
                out.reconfigure(errors="backslashreplace")  # as standard error: the name of a file may be any bytes
            try:
                exit_status = run(*args, **options)
                if not sys.stdout.closed:  # the language server closes it
                    sys.stdout.flush()
            except OSError as error:
                if error.errno not in _OUTPUT_ERRORS or error.filename is not None:
                    raise
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is not written is not tried again
                if isinstance(error, BrokenPipeError):
                    return 1
                with contextlib.suppress(OSError):  # it may be what cannot be written
                    print(f"{program}: cannot write to standard output: {error.strerror}", file=sys.stderr)
                return unwritten
            except KeyboardInterrupt:  # while it imports what the command needs, too
                return 130
            return exit_status

        return main

    return decorator


def command_line(version: Callable[[], str], description: str, epilog: str | None, *, completes: bool) -> typer.Typer:
    """Return a command line without commands yet, whose option --version prints what `version` returns."""

    def show_version(wanted: bool) -> None:
        if wanted:
            print(version())
            raise typer.Exit

    def shared_options(
        _version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="print the version and exit")
        ] = False,
    ) -> None:
        """Accept the options of the command line itself."""

    # Plain help and errors: rich's frames need a wide terminal, and paths in messages would read as its markup.
    made = typer.Typer(
        cls=_Commands, no_args_is_help=True, add_completion=completes, rich_markup_mode=None,
        context_settings={"max_content_width": 120},
    )  # fmt: skip
    made.callback(help=as_written(description), epilog=None if epilog is None else as_written(epilog))(shared_options)
    return made


def run_command_line(application: Callable[..., Any], arguments: Sequence[str] | None, program: str) -> int:
    """Run one command of what `typer.main.get_command` returns for a command line, and return its exit status."""
    try:
        application(arguments, prog_name=program)
    except SystemExit as ended:  # typer always ends so
        return ended.code if isinstance(ended.code, int) else 0
    return 0


class _Commands(typer.core.TyperGroup):
    """A command line whose help lists its commands below their headings (`rich_help_panel`), in the order of both."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the lists."""
        width = max(map(len, self.commands))
        by_heading: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None)
            row = name.ljust(width), command.get_short_help_str(formatter.width)
            by_heading.setdefault(heading if isinstance(heading, str) else "Commands", []).append(row)
        for heading, rows in by_heading.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


class Command(typer.core.TyperCommand):
    """A command that refuses a value in the words of a command line, not in those of typer's validators."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            said = error.message.removeprefix("Value error, ").partition(", unable to parse")[0]
            error.message = said.replace("Input should be", "it must be")
            choices = re.fullmatch(r"'(.*)' is not one of (.*)\.", said)
            if choices and (meant := closest(choices[1], re.findall("'([^']*)'", choices[2]))):
                error.message = f"{said} Did you mean '{meant}'?"
            raise


def own_name() -> str:
    """Return how to run `rest-bridge` from a shell: by name if the shell finds this program so, else by its path."""
    called, found = sys.argv[0], shutil.which("rest-bridge")
    if Path(called).name != "rest-bridge" or (found and os.path.realpath(found) == os.path.realpath(called)):
        return "rest-bridge"
    return shlex.quote(called)


def as_written(text: str) -> str:
    """Mark each paragraph so that its lines are kept; typer would rewrap them."""
    return "\n\n".join(f"\b\n{paragraph}" for paragraph in text.strip().split("\n\n"))


def read_bytes(path: Path, most: int = 16 << 20) -> bytes:
    """Read a file that an option names; raises `ConfigurationError` where that fails, or it is larger than `most`."""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        is_relative = isinstance(error, FileNotFoundError) and not path.is_absolute()
        where = f" (working directory: {Path.cwd()})" if is_relative else ""
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}{where}") from error
    if len(content) > most:
        raise ConfigurationError(f"cannot read {path}: it is larger than {size_text(most)}")
    return content


def listed(faults: Sequence[Fault]) -> tuple[list[Fault], str | None]:
    """Return the faults to list, in their order, and a line that counts the others, None if all are listed.

    Of more than `MOST_LISTED` faults, errors are listed rather than warnings, and warnings rather than notices.
    """
    severities = list(Severity)
    by_severity = sorted(range(len(faults)), key=lambda number: severities.index(faults[number].severity))
    others = counted(faults[number] for number in by_severity[MOST_LISTED:])
    chosen = sorted(by_severity[:MOST_LISTED])
    return [faults[number] for number in chosen], f"... and {others} more" if others else None


def counted(faults: Iterable[Fault]) -> str:
    """Count faults by severity: `2 errors, 1 warning`; "" for none."""
    counts = Counter(fault.severity for fault in faults)
    return ", ".join(count(counts[severity], severity) for severity in Severity if counts[severity])


def agrees(question: str, done: str = "sent") -> bool:
    """Ask before something is `done`; return False for no, and if no answer comes."""
    try:
        return typer.confirm(question)
    except typer.Abort:
        print(f"\nno answer, so nothing is {done} (--yes: does not ask)", file=sys.stderr)
        return False


def certificate_refused(error: "ssl.SSLCertVerificationError") -> tuple[str, str]:
    """Return why the certificate of a broker or an admin port is refused, and what to do."""
    hint = "--ca-file names the authorities to trust"
    if error.verify_code == _EXPIRED:
        hint = "it needs a new one; check this machine's clock too"
    return f"its certificate is refused: {error.verify_message}", hint


def several(names: Sequence[str], most: int) -> str:
    """Return the first names, `most` of them, and how many more there are: `a, b and 3 more`."""
    others = len(names) - most
    return ", ".join(names[:most]) + (f" and {others} more" if others > 0 else "")


def without_controls(text: str) -> str:
    """Replace control characters, which would steer the terminal."""
    return "".join([char if char.isprintable() else "\ufffd" for char in text])


def count(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an s in the plural."""
    return f"{number} {noun}{'s' if number != 1 else ''}"
