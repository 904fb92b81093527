"""Load route files in a process of its own, so that parsing never takes the interpreter of the broker.

`SubprocessLoader` starts `python -m` with this module: paths as an argument, on standard input the texts that were
parsed before, on standard output the result and the texts now in use, pickled.
"""

import asyncio
import json
import os
import pickle
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from amqtt_rest_bridge.errors import BridgeError, ConfigurationError
from amqtt_rest_bridge.language import loader, sources
from amqtt_rest_bridge.language.definitions import ParsedTexts
from amqtt_rest_bridge.language.evaluation import Environment
from amqtt_rest_bridge.language.loader import LoadResult
from amqtt_rest_bridge.processes.child import own_code

RunLoader = Callable[[str, bytes], Awaitable[tuple[int, bytes, bytes]]]
"""Run this module in a process with its argument and standard input; return its status and what it wrote to both."""


async def run_loader(argument: str, texts: bytes) -> tuple[int, bytes, bytes]:
    """Run this module in an interpreter of its own, which is killed where the caller is cancelled."""
    command, environment = own_code("amqtt_rest_bridge.processes.route_loader")
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
        paths: Files and folders, as configured.
        secrets_dir: Where GET SECRET reads.
        parsed: What was parsed at the start.
        run: Runs this module.
    """

    def __init__(
        self, paths: Sequence[str], secrets_dir: str, parsed: ParsedTexts | None = None, run: RunLoader = run_loader
    ) -> None:
        self._argument = json.dumps({"paths": list(paths), "secrets_dir": secrets_dir})
        self._parsed = b"" if parsed is None else parsed.dump()
        self._run = run

    async def load(self) -> LoadResult:
        """Load the files as they are now, with variables and secrets as they are now.

        Raises:
            ConfigurationError: The process failed; the message is the last line of its stderr.
        """
        status, output, errors = await self._run(self._argument, self._parsed)
        if status:
            reason = errors.decode(errors="replace").strip().rpartition("\n")[2]
            raise ConfigurationError(reason or "the loader failed")
        result: LoadResult
        result, self._parsed = pickle.loads(output)  # noqa: S301  # our own process
        return result


def main() -> int:
    """Load what the argument names and write the pickled result; on an error write the reason to stderr, status 1."""
    wanted = json.loads(sys.argv[1])
    parsed = ParsedTexts(sys.stdin.buffer.read())
    try:
        texts = sources.read(wanted["paths"])
    except BridgeError as error:
        print(error, file=sys.stderr)  # noqa: T201  # read by the broker
        return 1
    secrets_dir = Path(wanted["secrets_dir"])
    result = loader.load(texts, Environment(os.environ, secrets_dir), parsed)
    sys.stdout.buffer.write(pickle.dumps((result, parsed.dump())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
