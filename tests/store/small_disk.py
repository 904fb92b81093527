"""A disk of 2 MB, and what can happen to files on it; run in processes of its own by `test_full_disk`.

    python -m tests.store.small_disk KIND FOLDER SCENARIO ...

`tmpfs` needs a mount namespace of its own (`unshare -m`); `limit` bounds the size of each file instead, which every
user may do: writes fail there as they do on a full disk. Each scenario has a disk and a process of its own; the exit
status is how many do not hold, and each of them is named.
"""

import contextlib
import functools
import os
import random
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from amqtt_rest_bridge.admin.kept_runs import KeptRun
from amqtt_rest_bridge.admin.runs import Run
from amqtt_rest_bridge.lot.model import Message
from amqtt_rest_bridge.store import Kept, Spool, SpoolFullError, disk_space, failure_file
from amqtt_rest_bridge.store.failure_file import FailureFile
from tests.store.filling import in_child
from tests.support.waiting import eventually

SIZE: Final = 2 << 20


def keep(spool: Spool, number: int, size: int = 10_000) -> str:
    """Keep a message whose topic says its number."""
    return spool.keep("L", "E", Message(f"in/{number}", b"x" * size, 1000.0), 0, None)


def fill(spool: Spool, size: int = 10_000) -> list[str]:
    """Keep messages until there is no room."""
    keys: list[str] = []
    with contextlib.suppress(SpoolFullError):
        while True:
            keys.append(keep(spool, len(keys), size))
    return keys


def tidy(spool: Spool) -> None:
    """Do what the plugin does every second, with fewer flushes than its hundred."""
    for _ in range(3):
        spool.flush()
    spool.checkpoint()
    spool.finish_checkpoint()


def take_what_is_left(folder: Path) -> None:
    """Fill the disk with another file."""
    with (folder / "other").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def opened(folder: Path) -> AbstractContextManager[Spool]:
    """Open the spool of a disk for a block."""
    return contextlib.closing(Spool(folder / "spool.db"))


def left(spool: Spool) -> list[str]:
    """Return the keys of an earlier run."""
    return [kept.key for kept in spool.left_over() if isinstance(kept, Kept)]


def assert_holds(folder: Path, keys: list[str]) -> None:
    """Show that the next start finds these messages."""
    with opened(folder) as spool:
        assert left(spool) == keys


def assert_removed(spool: Spool, keys: list[str]) -> None:
    """End the calls of a spool, and show that it forgets them."""
    for key in keys:
        spool.forget(key)
    for _ in range(3):
        tidy(spool)
    assert spool._connection.execute("SELECT count(*) FROM calls").fetchone() == (0,)


def calls_that_end_make_room(folder: Path) -> None:
    """Everything is sent: as many new messages as before find room, again and again, without a restart."""
    with opened(folder) as spool:
        first = fill(spool)
        assert len(first) > 50, len(first)
        keys = first
        for _ in range(5):
            for key in keys:
                spool.forget(key)
            tidy(spool)
            keys = [keep(spool, number) for number in range(50)]
    assert_holds(folder, keys)


def one_by_one(folder: Path) -> None:
    """Each call that ends makes room for one message."""
    with opened(folder) as spool:
        keys = fill(spool)
        for key in keys[:3]:  # SQLite's pages are not filled to the last byte
            spool.forget(key)
        keys = keys[3:]
        for number in range(100):
            spool.forget(keys.pop(0))
            spool.flush()
            keys.append(keep(spool, number))
    assert_holds(folder, keys)


def small_messages(folder: Path) -> None:
    """The same with thousands of small ones, which end out of order."""
    with opened(folder) as spool:
        keys = fill(spool, 100)
        random.Random(3).shuffle(keys)
        assert_removed(spool, keys)
        keys = [keep(spool, number, 100) for number in range(1000)]
    assert_holds(folder, keys)


def start_with_a_full_disk(folder: Path) -> None:
    """The broker was killed with its disk full: it starts, sends, removes and takes new messages."""
    keys = in_child(lambda write: [write(key) for key in fill(Spool(folder / "spool.db"))])
    with opened(folder) as spool:
        assert left(spool) == keys
        for key in keys:
            spool.forget(key)
        tidy(spool)
        keys = [keep(spool, number) for number in range(50)]
    assert_holds(folder, keys)


def kills(folder: Path) -> None:
    """A kill at any moment beside a full disk: what is kept stays kept, what was removed stays removed."""
    moments = random.Random(5)
    present: set[str] = set()
    for _ in range(10):

        def work(write: Callable[[str], object], writes: int = moments.randrange(1, 400)) -> None:
            spool = Spool(folder / "spool.db")
            mine = left(spool)
            while True:
                with contextlib.suppress(SpoolFullError):
                    while True:
                        mine.append(keep(spool, 0, moments.randrange(1, 30_000)))
                        write(f"+{mine[-1]}")
                        writes -= 1
                        if writes <= 0:
                            os.kill(os.getpid(), signal.SIGKILL)
                moments.shuffle(mine)
                gone, mine = mine[: len(mine) // 2 + 1], mine[len(mine) // 2 + 1 :]
                for key in gone:
                    write(f"?{key}")
                    spool.forget(key)
                tidy(spool)
                for key in gone:
                    write(f"-{key}")

        news = in_child(work)
        perhaps = {line[1:] for line in news if line[0] == "?"}
        present |= {line[1:] for line in news if line[0] == "+"}
        present -= {line[1:] for line in news if line[0] == "-"}
        with opened(folder) as spool:
            found = set(left(spool))
        assert present - perhaps <= found, "a message is lost"
        assert found <= present | perhaps, "a message came back"
        assert len(found - present) <= 1, "a message whose loss was not reported"
        present = found


def other_files(folder: Path) -> None:
    """Something else fills the disk: calls go on and end, new ones take their places, and room is noticed."""
    with opened(folder) as spool:
        keys = [keep(spool, number) for number in range(30)]
        take_what_is_left(folder)
        tidy(spool)  # the checkpoint finds no room at first
        assert not (folder / "spool.db-wal").stat().st_size
        for key in keys[:20]:
            spool.forget(key)
        tidy(spool)
        assert spool._connection.execute("SELECT count(*) FROM calls").fetchone() == (10,)
        keys = keys[20:] + [keep(spool, number) for number in range(10)]
    with opened(folder) as spool:
        assert left(spool) == keys
        (folder / "other").unlink()
        tidy(spool)
        keys += [keep(spool, number) for number in range(50)]
    assert_holds(folder, keys)


def other_files_have_taken_all_that_a_sent_spool_left(folder: Path) -> None:
    """All calls have ended, and what is full of removed messages makes room by itself: other files leave none."""
    with opened(folder) as spool:
        keys = fill(spool, 15_000)
        tidy(spool)
        take_what_is_left(folder)
        assert_removed(spool, keys)
        tidy(spool)
        keys = [keep(spool, number) for number in range(20)]
    assert_holds(folder, keys)


def other_files_take_what_a_start_finds(folder: Path) -> None:
    """The broker is killed with its disk full, and something else takes what its next start lets go."""

    def work(write: Callable[[str], object]) -> None:
        spool = Spool(folder / "spool.db")
        for key in fill(spool, 15_000):
            write(key)
        tidy(spool)
        take_what_is_left(folder)

    keys = in_child(work)
    with opened(folder) as spool:
        assert left(spool) == keys
        take_what_is_left(folder)
        assert_removed(spool, keys)


def other_files_take_whatever_becomes_free(folder: Path) -> None:
    """Something else takes each byte that is free, again and again: calls that end are removed all the same."""
    with opened(folder) as spool:
        keys = fill(spool, 15_000)
        tidy(spool)
        take_what_is_left(folder)
        for key in keys:
            spool.forget(key)
            spool.flush()
            take_what_is_left(folder)
            tidy(spool)
            take_what_is_left(folder)
        assert spool._connection.execute("SELECT count(*) FROM calls").fetchone() == (0,)


def a_log_that_is_too_large_for_the_loop(folder: Path) -> None:
    """The log waits for its thread when the disk is full: new messages leave it the room that it needs."""
    other = folder / "other"
    disk_space._SMALL_LOG = 0  # type: ignore[misc]
    with opened(folder) as spool:
        keys = [keep(spool, number, 1000) for number in range(100)]
        take_what_is_left(folder)
        keys += fill(spool, 1000)
        other.unlink()
        with contextlib.suppress(SpoolFullError):
            for number in range(3000):  # one takes the place of another, and both write to the log
                spool.forget(keys.pop(0))
                spool.flush()
                if number > 20:
                    keys.append(keep(spool, number, 1000))
        for key in keys:
            spool.forget(key)
        tidy(spool)
        tidy(spool)
        assert spool._connection.execute("SELECT count(*) FROM calls").fetchone() == (0,)
        keys = [keep(spool, number, 1000) for number in range(50)]
    assert_holds(folder, keys)


def a_broker(folder: Path) -> None:
    """The whole product: a server that is away until the spool is full, and comes back."""
    from tests.support.embedded_broker import hosting  # amqtt, which the other scenarios need not wait for
    from tests.support.http_recorder import recording
    from tests.support.lossless import route

    with recording() as target:
        target.answer = lambda _: (503, b"")
        with hosting(route(target.port), spool=str(folder / "spool.db")) as host:
            client = host.client("out")
            count = 0
            lossless: Any = host.plugin._lossless
            while lossless.refusing is None:
                client.publish("in/x", b"%d " % count + b"x" * 10_000)
                count += 1
            assert b"could not be written to the spool" in client.message()[1]
            target.answer = lambda _: (200, b"")
            client.messages(count - 1)
            client_two = host.client("out")
            for number in range(50):
                client_two.publish("in/x", b"new %d " % number + b"x" * 10_000)
            assert [payload for _, payload in client_two.messages(50)] == [b""] * 50
            assert host.program.status("L")["messages"]["refused"] == 1
            eventually(lambda: host.program.status("L")["messages"]["in_flight"] == 0, "a call is open")
        with hosting(route(target.port), spool=str(folder / "spool.db")) as host:
            host.client("out").publish("in/x", b"after the restart")


def failures(folder: Path) -> None:
    """A file of failures: a full disk costs no start, and what is kept is written once there is room."""
    failure_file._AGAIN_SECONDS = 0.05  # type: ignore[misc]
    path = folder / "failures.db"

    def await_written(file: FailureFile[KeptRun]) -> None:
        eventually(lambda: not file.waiting and file.trouble is None)

    with contextlib.closing(FailureFile(path, KeptRun)) as file:
        for number in range(10):
            file.put(str(number), failed(number))
        await_written(file)
        with without_room(folder):
            for number in range(10, 40):
                file.put(str(number), failed(number))
            eventually(lambda: file.trouble is not None)
            assert file.trouble == f"the disk of {path} is full; make room on it, and what waits is written"
            file.put("0", None)
            assert file.waiting
        await_written(file)
    with contextlib.closing(FailureFile(path, KeptRun)) as file:
        assert [one.run.id for one in file.loaded] == [str(number) for number in range(1, 40)]
    with contextlib.ExitStack() as full:
        full.enter_context(without_room(folder))
        with contextlib.closing(FailureFile(path, KeptRun)) as file:  # starts, with what it held or a trouble it names
            assert len(file.loaded) == 39 or file.trouble is not None
            full.close()
            file.put("40", failed(40))
            await_written(file)
    with contextlib.ExitStack() as full:
        full.enter_context(without_room(folder))
        with contextlib.closing(FailureFile(folder / "new.db", KeptRun)) as file:
            assert file.trouble is not None
            assert file.loaded == []
            file.put("1", failed(1))
            full.close()
            await_written(file)
    for name, count in (("failures.db", 40), ("new.db", 1)):
        with contextlib.closing(FailureFile(folder / name, KeptRun)) as file:
            assert len(file.loaded) == count


def failed(number: int) -> KeptRun:
    record = Run(float(number), "call", str(number), "R", "E", "in", code="http_status")
    return KeptRun(record, "in", 0.0, bytes(20_000), None)


@contextlib.contextmanager
def without_room(folder: Path) -> Iterator[None]:
    """Leave no room on the disk, or no file any, until the block ends."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if before[0] == SIZE:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    else:
        take_what_is_left(folder)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        (folder / "other").unlink(missing_ok=True)


SCENARIOS: Final = {
    scenario.__name__: scenario
    for scenario in (
        calls_that_end_make_room,
        one_by_one,
        small_messages,
        start_with_a_full_disk,
        kills,
        other_files,
        other_files_have_taken_all_that_a_sent_spool_left,
        other_files_take_what_a_start_finds,
        other_files_take_whatever_becomes_free,
        a_log_that_is_too_large_for_the_loop,
        a_broker,
        failures,
    )
}


def main(kind: str, folder: str, *scenarios: str) -> int:
    """Run scenarios one after the other; return how many do not hold."""
    return sum(map(functools.partial(_fails, kind, Path(folder)), scenarios))


def _fails(kind: str, folder: Path, scenario: str) -> bool:
    """Run a scenario on a small disk in a fork of this process."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    status = 1
    try:
        disk = folder / scenario
        disk.mkdir()
        if kind == "tmpfs":
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", disk], check=True)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        SCENARIOS[scenario](disk)
        status = 0
    except BaseException:  # noqa: BLE001  # as at the end of an interpreter
        print(f"{scenario} does not hold:", traceback.format_exc(), sep="\n", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
