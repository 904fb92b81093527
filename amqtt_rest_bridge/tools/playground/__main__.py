"""The process of a playground: reads a `Trial` from standard input, writes a `TrialResult` to standard output.

It has little priority and limits on processor time and memory, and reads no file but its own code. `site.playground`
starts it.
"""

import errno
import os
import resource
import sys
import sysconfig
from typing import Any, Final

import msgspec

from amqtt_rest_bridge.site.playground import CPU_SECONDS, Trial
from amqtt_rest_bridge.tools.playground import run_trial

_MEMORY: Final = 1 << 30
_NICE: Final = 10
# An event loop makes a pair of sockets; nothing is to reach, or be reached from, outside of the process.
_REFUSED: Final = (
    "os.exec", "os.fork", "os.posix_spawn", "os.system", "subprocess.",
    "socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostby", "socket.getnameinfo", "socket.send",
)  # fmt: skip


def read_no_files() -> None:
    """Refuse files but those of imports, and have all others pass for files: a definition must not find out any."""
    # The folders of libraries, and the packages that are elsewhere. The other folders of `sys.path` and the prefix of
    # Python are not code: whole projects may be in them.
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    libraries += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    places = [os.path.realpath(folder) for folder in libraries]
    for name, module in list(sys.modules.items()):
        if "." not in name and (file := getattr(module, "__file__", None)):
            place = os.path.realpath(file)
            places.append(os.path.dirname(place) if hasattr(module, "__path__") else place)  # noqa: PTH120
    code = tuple(f"{place}{os.sep}" for place in places)
    status, any_file = os.stat, os.stat(__file__)  # noqa: PTH116

    def is_ours(path: "int | str | bytes | os.PathLike[str]") -> bool:
        return isinstance(path, int) or f"{os.path.realpath(os.fsdecode(path))}{os.sep}".startswith(code)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_REFUSED) or (event == "open" and not is_ours(arguments[0])):
            raise PermissionError(errno.EACCES, "the playground reads no files; leave it out here")

    sys.addaudithook(refuse)
    os.stat = lambda path, **given: status(path, **given) if is_ours(path) else any_file


def main() -> int:
    """Judge what standard input holds, within the limits."""
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    read_no_files()
    trial = msgspec.json.decode(sys.stdin.buffer.read(), type=Trial)
    sys.stdout.buffer.write(msgspec.json.encode(run_trial(trial)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
