"""Route files that are written in place: a look in the middle of it finds them empty, or a part of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.reloading import client_route, loaded_before, server_route, watched
from tests.support import lossless
from tests.support.embedded_broker import hosting
from tests.support.gate import Gate
from tests.support.http_recorder import Recorder

BOTH = server_route("/a", name="A") + server_route("/b", name="B")
Step = Callable[[Path], object]


def empty(path: Path) -> None:
    path.write_text("")


def part(path: Path) -> None:
    path.write_text(server_route("/a", name="A"))


def whole(path: Path) -> None:
    path.write_text(BOTH + server_route("/c", name="C"))


def longer(path: Path) -> None:
    path.write_text(f"{BOTH}\n")


def nothing(_path: Path) -> None:
    pass


def applied(
    folder: Path, monkeypatch: pytest.MonkeyPatch, steps: Sequence[Step], reading: Step = nothing
) -> list[str | list[str]]:
    """Take one step of a writer before each look; return the names of the routes of each set that is applied.

    `reading` is its step while the files are read for the first time.
    """
    path = folder / "a.lot"
    path.write_text(BOTH)
    before, left, reads = loaded_before(folder), iter(steps), iter([reading])
    log = watched(
        folder, monkeypatch, len(steps) + 3, before,
        step=lambda: next(left, nothing)(path), reading=lambda: next(reads, nothing)(path),
    )  # fmt: skip
    return [one for one in log if isinstance(one, list)]


def test_a_file_that_is_written_in_place_keeps_its_routes_until_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert applied(tmp_path, monkeypatch, [nothing, empty, part, whole]) == [["A", "B", "C"]]


def test_a_file_that_is_emptied_while_it_is_read_keeps_its_routes_until_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [longer, nothing, whole]
    assert applied(tmp_path, monkeypatch, steps, reading=empty)[0] == ["A", "B", "C"]


@pytest.mark.parametrize(
    ("step", "routes"), [pytest.param(empty, [], id="empty"), pytest.param(part, ["A"], id="shorter"),
                         pytest.param(Path.unlink, [], id="gone")]
)  # fmt: skip
def test_a_file_that_stays_empty_or_shorter_counts_at_the_second_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Step, routes: list[str]
) -> None:
    assert applied(tmp_path, monkeypatch, [nothing, step, nothing]) == [routes]


def test_a_route_whose_messages_suffer_from_its_removal_is_warned_of(
    tmp_path: Path, target: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    target.answer = gate.before(lambda _: (200, b""))
    files: dict[str, Any] = {"spool": str(tmp_path / "spool.db"), "failures": str(tmp_path / "failures.db")}
    with hosting("", **files) as host:
        routes = [client_route(target, name="Busy", source="busy"), client_route(target, name="Idle", source="idle")]
        lossless.load(host, lossless.route(target.port) + "".join(routes))
        client = host.client("out")
        for topic in ("in/1", "busy", "busy"):
            client.publish(topic, b"x")
            target.request()
        lossless.load(host, "")
        gate.open.set()
        assert client.messages(3) == [("out", b"")] * 3
    assert sorted(caplog.messages) == [
        "route Busy was removed: 2 message(s) that it has taken had not ended",
        "route L was removed: it is lossless, and from now on nothing is kept for it; 1 message(s) that it has taken "
        "had not ended",
    ]
