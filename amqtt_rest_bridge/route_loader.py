"""Load route files in a process of its own, so that parsing never takes the interpreter of the broker.

`SubprocessLoader` starts `python -m` with this module: paths as an argument, on standard input the texts that were
parsed before and those to try, on standard output the result and the texts now in use, pickled.
"""

import asyncio
import json
import os
import pickle
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from amqtt_rest_bridge.child_process import own_code
from amqtt_rest_bridge.errors import BridgeError, ConfigurationError, Fault, Position, Severity
from amqtt_rest_bridge.lot.model import LoadResult
from amqtt_rest_bridge.settings import Settings
from amqtt_rest_bridge.system import leave_no_core_file

MOST_FAULTS: Final = 200
"""So many faults of texts to try are returned, those of the texts first."""


async def run_loader(argument: str, texts: bytes) -> tuple[int, bytes, bytes]:
    """Run this module in an interpreter of its own, which is killed if the caller is cancelled.

    Returns its status, and what it wrote to standard output and standard error.
    """
    command, environment = own_code("amqtt_rest_bridge.route_loader")
    running = await asyncio.create_subprocess_exec(
        *command,
        argument,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        output, errors = await running.communicate(texts)
    finally:
        if running.returncode is None:  # the broker stops
            running.kill()
            await running.communicate()  # asyncio warns of pipes that outlive their loop
    return running.returncode or 0, output, errors


class SubprocessLoader:
    """Loads route files; a text that was there the last time is not parsed again.

    Args:
        settings: Those of the configuration, of which some say what is loaded.
        parsed: Texts that were parsed before, as `ParsedTexts.dump` writes them.
    """

    def __init__(self, settings: Settings, parsed: bytes = b"") -> None:
        wanted = {"paths": settings.route_paths, "may_be_empty": settings.optional_paths}
        self._argument = json.dumps(wanted | {"secrets_dir": settings.secrets_dir})
        self.parsed = parsed
        """The texts that were loaded last."""

    async def load(self, instead: Mapping[str, str | None] | None = None) -> LoadResult:
        """Load the files as they are now, with variables and secrets as they are now.

        `instead` are texts to try in the place of files, see `sources.read`: then there are at most `MOST_FAULTS`.

        Raises:
            ConfigurationError: The process failed; the message is the last line of its stderr.
        """
        status, output, errors = await run_loader(self._argument, pickle.dumps((instead, self.parsed)))
        if status:
            reason = errors.decode(errors="replace").strip().rpartition("\n")[2]
            raise ConfigurationError(reason or "the loader failed")
        result: LoadResult
        result, self.parsed = pickle.loads(output)  # noqa: S301  # our own process
        return result


def load_files(arguments: str, known: bytes, instead: Mapping[str, str | None] | None) -> tuple[LoadResult, bytes]:
    """Load files and return the result and the texts that the next time need not be parsed; blocks.

    Args:
        arguments: Those of a `SubprocessLoader`, JSON.
        known: Texts that were parsed before.
        instead: Texts to try; see `SubprocessLoader.load`.

    Raises:
        ConfigurationError: A path cannot be read.
    """
    from amqtt_rest_bridge.lot import loader, sources  # which a worker's own process has no memory for
    from amqtt_rest_bridge.lot.evaluation import Environment
    from amqtt_rest_bridge.lot.parsed_texts import ParsedTexts

    wanted, parsed = json.loads(arguments), ParsedTexts(known)
    texts = sources.read(wanted["paths"], wanted["may_be_empty"], instead)
    environment = Environment(os.environ, Path(wanted["secrets_dir"]))
    result = loader.load(texts, environment, parsed)
    result = replace(result, variables=tuple(environment.variables), secrets=tuple(environment.secrets))
    if instead is None:
        return result, parsed.dump()
    return replace(result, faults=_first(result.faults, instead)), known if result.has_errors else parsed.dump()


def main() -> int:
    """Load what the argument names and write the pickled result; on an error write the reason to stderr, status 1."""
    leave_no_core_file()
    instead, known = pickle.loads(sys.stdin.buffer.read())  # noqa: S301  # our own process
    try:
        loaded = load_files(sys.argv[1], known, instead)
    except BridgeError as error:
        print(error, file=sys.stderr)  # noqa: T201  # read by the broker
        return 1
    sys.stdout.buffer.write(pickle.dumps(loaded))
    return 0


def _first(faults: Sequence[Fault], tried: Collection[str]) -> tuple[Fault, ...]:
    """Return the faults of the texts that are tried, then the others; if there are too many, errors are preferred."""
    more: list[Fault] = []
    if len(faults) > MOST_FAULTS:
        by_weight = sorted(faults, key=lambda fault: (fault.path not in tried, fault.severity is not Severity.ERROR))
        last, message = by_weight[MOST_FAULTS - 1], f"{len(faults) - MOST_FAULTS + 1} more faults are not listed"
        more = [Fault(last.path, Position(1, 1), last.severity, message)]
        kept = set(by_weight[: MOST_FAULTS - 1])
        faults = [fault for fault in faults if fault in kept]
    return (*sorted(faults, key=lambda fault: fault.path not in tried), *more)


if __name__ == "__main__":
    sys.exit(main())
