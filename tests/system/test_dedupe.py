"""DEDUPE_KEY: a request that comes again publishes nothing and has the first one's answer, whatever is killed."""

import concurrent.futures
import itertools
import json
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from amqtt_rest_bridge.engine.trial import RequestTrial, try_request
from amqtt_rest_bridge.http.exchange import Request
from amqtt_rest_bridge.store import SeenKeys
from amqtt_rest_bridge.store.seen import MOST_BYTES
from tests.support.asking import ask_until_answered
from tests.support.embedded_broker import Host, hosting
from tests.support.full_disk import full_disk
from tests.support.http_recorder import Recorder
from tests.support.route_text import load_text, messages

ROUTE = """
    DEFINE ROUTE Hooks WITH TYPE REST_API
        ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0'
        ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/hook" WITH DESTINATION_TOPIC "hook"
            WITH DEDUPE_KEY "{{header.webhook-id}}" {more}
"""


def text(more: str = "") -> str:
    return ROUTE.format(more=more)


class Clock:
    """What the stores of a test go by; `close` ends them all."""

    def __init__(self) -> None:
        self.wall, self.monotonic = 1_000_000.0, 50.0
        self._stores: list[SeenKeys] = []

    def keys(self, path: Path | None = None, most: int = 1000, most_bytes: int = MOST_BYTES) -> SeenKeys:
        self._stores.append(SeenKeys(path, lambda: self.wall, lambda: self.monotonic, most, most_bytes))
        return self._stores[-1]

    def close(self) -> None:
        for store in self._stores:
            store.close()


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    yield clock
    clock.close()


# Keys.


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_a_key_is_known_for_its_time_whatever_the_clock_of_the_day_does(
    clock: Clock, tmp_path: Path, *, on_disk: bool
) -> None:
    keys = clock.keys(tmp_path / "seen" if on_disk else None)
    keys.keep(b"a", 10.0, b"answer")
    clock.wall += 1e9
    clock.monotonic += 9.9
    assert keys.answer(b"a") == b"answer"
    clock.wall -= 2e9
    clock.monotonic += 0.2
    assert keys.answer(b"a") is None
    keys.close()


def test_a_file_has_its_keys_after_a_kill_and_a_damaged_one_costs_them_only(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "seen"
    clock.keys(path).keep(b"a", 10.0, b"answer")  # it is never closed
    assert clock.keys(path).answer(b"a") == b"answer"
    clock.wall += 11
    assert clock.keys(path).answer(b"a") is None
    path.write_bytes(b"no database" * 1000)
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    keys = clock.keys(path)
    assert keys.answer(b"a") is None
    keys.keep(b"b", 10.0, b"")
    assert keys.answer(b"b") == b""
    keys.close()


@pytest.mark.parametrize(
    ("at", "damage"),
    [
        pytest.param(0, b"no database", id="header"),
        pytest.param(8192, b"", id="cut off"),
        pytest.param(8192, b"\x00" * 65_536, id="empty pages"),
        pytest.param(b"WITHOUT ROWID", b"WITHOUT ROW\xe1D", id="schema that is not UTF-8"),
        pytest.param(b"answer BLOB", b"answes BLOB", id="schema"),
    ],
)
def test_a_damaged_file_keeps_keys_again_after_a_few(
    clock: Clock, tmp_path: Path, at: int | bytes, damage: bytes
) -> None:
    path = tmp_path / "seen"
    keys = clock.keys(path)
    for number in range(500):
        keys.keep(b"%d" % number, 1000.0, b"x" * 100)
    keys.close()
    whole = path.read_bytes()
    where = at if isinstance(at, int) else whole.index(at)
    path.write_bytes(whole[:where] + damage + (whole[where + len(damage) :] if damage else b""))
    keys = clock.keys(path)
    for number in range(500, 700):
        keys.keep(b"%d" % number, 1000.0, b"")
    assert all(keys.answer(b"%d" % number) is not None for number in range(510, 700))


@pytest.mark.parametrize("is_asked", [True, False])
@pytest.mark.parametrize(
    "damage",
    [
        *("answer = 'text'", "answer = CAST(x'ff' AS TEXT)", "answer = 5", "answer = NULL", "until = 'late'"),
        *("until = CAST(x'ff' AS TEXT)", "key = 'a', until = 0"),
    ],
)
def test_a_row_that_is_not_as_it_was_written_costs_the_keys_only(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str, *, is_asked: bool
) -> None:
    path = tmp_path / "seen"
    keys = clock.keys(path)
    keys.keep(b"a", 1000.0, b"answer")
    keys.close()
    with closing(sqlite3.connect(path)) as database, database:
        damaged = "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, ' NOT NULL', '')"
        database.executescript(damaged)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE seen SET {damage}")
    keys = clock.keys(path)
    assert not is_asked or keys.answer(b"a") is None
    keys.keep(b"a", 1000.0, b"again")
    assert keys.answer(b"a") == b"again"
    said = f"keys of DEDUPE_KEY are forgotten, {path} is damaged: a row is not as it was written"
    assert set(caplog.messages) <= {said}


@pytest.mark.parametrize("opened", [True, False])
def test_keys_that_a_full_disk_does_not_take_are_known_until_the_end_and_those_on_it_too(
    clock: Clock, tmp_path: Path, *, opened: bool
) -> None:
    keys = clock.keys(tmp_path / "seen")
    if opened:
        keys.keep(b"a", 1000.0, b"first")
    with full_disk():
        for number in range(100):
            keys.keep(b"%d" % number, 1000.0, b"x" * 1000)
        assert all(keys.answer(b"%d" % number) == b"x" * 1000 for number in range(100))
    keys.keep(b"b", 1000.0, b"last")
    keys.close()
    keys = clock.keys(tmp_path / "seen")
    assert [keys.answer(key) for key in (b"a", b"b")] == [b"first" if opened else None, b"last"]


def test_a_file_that_cannot_be_opened_is_logged_once_and_tried_again_and_its_keys_are_in_memory(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "missing"
    path = folder / "seen"
    keys = clock.keys(path)
    for number in range(1000):
        assert keys.answer(b"%d" % number) is None
        keys.keep(b"%d" % number, 1000.0, b"answer")
        assert keys.answer(b"%d" % number) == b"answer"
    folder.mkdir()
    keys.keep(b"0", 1000.0, b"another")
    assert keys.answer(b"0") == b"another"
    clock.monotonic += 61
    keys.keep(b"b", 1000.0, b"")
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("ERROR", f"keys of DEDUPE_KEY are kept in memory only, not in {path}: unable to open database file"),
        ("WARNING", f"keys of DEDUPE_KEY are kept in {path} again"),
    ]


def test_the_keys_that_end_first_are_pushed_out_by_too_many(clock: Clock) -> None:
    keys = clock.keys(most=100)
    for number in range(300):
        keys.keep(b"%d" % number, 1000.0 + number, b"")
    known = [number for number in range(300) if keys.answer(b"%d" % number) is not None]
    assert 50 < len(known) <= 101
    assert known[-1] == 299 and known == list(range(known[0], 300))


def test_answers_are_bounded_in_bytes_and_no_key_is_lost_for_them(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "seen"
    keys = clock.keys(path, most_bytes=1000)
    for number in range(20):
        keys.keep(b"%d" % number, 10.0 if number < 5 else 100.0, b"x" * 100)
    assert [len(keys.answer(b"%d" % number) or b"") for number in range(20)] == [100] * 10 + [0] * 10
    assert all(keys.answer(b"%d" % number) is not None for number in range(20))
    keys.close()
    clock.wall += 20.0
    keys = clock.keys(path, most_bytes=1000)
    for number in range(20, 30):
        keys.keep(b"%d" % number, 100.0, b"x" * 100)
    assert [len(keys.answer(b"%d" % number) or b"") for number in range(20, 30)] == [100] * 5 + [0] * 5


@pytest.mark.long
def test_a_million_keys_take_less_than_150_mb(clock: Clock) -> None:
    keys = clock.keys(most=1_000_000)
    before = resident()
    for number in range(1_000_000):
        keys.keep(number.to_bytes(16, "big"), 600.0, b"")
    assert resident() - before < 150e6


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Requests without a broker.


def twice(more: str, headers: dict[str, str] | None = None, reply: bytes | None = None) -> RequestTrial:
    routes = load_text(text(more)).routes
    request = Request("id", "POST", "/hook", "", {"webhook-id": "7"} if headers is None else headers, b'{"n": 1}')
    return try_request(routes, request, now=0.0, reply=reply, twice=True)


def test_a_key_that_cannot_be_filled_is_refused_and_an_ignored_request_is_not_seen() -> None:
    refused = twice("", headers={})
    assert (refused.response.status, refused.publications) == ("400 Bad Request", ())
    assert b"header.webhook-id" in refused.response.body
    assert twice('WITH WHEN "{body.json.n} = 2"').response.body == b'{"status": "ignored"}'


def test_a_key_without_placeholder_and_a_time_without_a_key_are_warned_of() -> None:
    (constant,) = messages(text().replace("{header.webhook-id}", "one"))
    assert "DEDUPE_KEY has no placeholder: only the first request within DEDUPE_FOR is published" in constant
    (lone,) = messages(text().replace('DEDUPE_KEY "{header.webhook-id}"', "DEDUPE_FOR 1h"))
    assert "DEDUPE_FOR has no effect without DEDUPE_KEY" in lone


# In a broker.

CALLERS = 8


def post(host: Host, key: str) -> tuple[int, bytes]:
    return ask_until_answered(host.http_port, "/hook", json.dumps({"key": key}).encode(), webhook_id=key)[:2]


def kill(host: Host) -> None:
    """Kill the bridge process, if there is one."""
    if (pid := host.child.pid) is not None:
        os.kill(pid, signal.SIGKILL)


def published_twice(host: Host, count: int, kills: int) -> Counter[bytes]:
    """Send each request twice while the bridge process is killed; return how often each was published."""
    client = host.client("hook")
    left = itertools.count(1)

    def send(key: str) -> tuple[int, bytes]:
        if next(left) % (2 * count // (kills + 1)) == 0 and kills:
            kill(host)
        return post(host, key)

    keys = [f"{number}" for number in range(count)]
    with concurrent.futures.ThreadPoolExecutor(CALLERS) as pool:
        answers = set(pool.map(send, [key for key in keys for _ in range(2)]))
    assert answers == {(200, b'{"status": "published", "topic": "hook"}')}
    post(host, "last")
    return Counter(iter(lambda: client.message()[1], b'{"key": "last"}'))


@pytest.mark.parametrize(
    ("count", "kills"),
    [
        pytest.param(60, 2, id="kills"),
        pytest.param(10_000, 5, id="many", marks=pytest.mark.long),
    ],
)
def test_each_request_that_comes_twice_is_published_and_twice_only_one_that_a_kill_met_before_its_key_was_written(
    tmp_path: Path, count: int, kills: int
) -> None:
    with hosting(text(), processes=1, spool=str(tmp_path / "spool.db")) as host:
        found = published_twice(host, count, kills)
    assert found.keys() == {json.dumps({"key": f"{number}"}).encode() for number in range(count)}
    assert max(found.values()) <= 2
    assert found.total() - count <= CALLERS * (kills + 1), "more than were under way"


def test_keys_beside_the_spool_survive_the_broker(tmp_path: Path) -> None:
    for expected in (b'{"key": "7"}', b'{"key": "8"}'):
        with hosting(text(), spool=str(tmp_path / "spool.db")) as host:
            client = host.client("hook")
            assert post(host, "7")[0] == 200
            assert post(host, "8" if expected == b'{"key": "8"}' else "7")[0] == 200
            assert client.message()[1] == expected
    assert (tmp_path / "spool.db-seen").exists()


@pytest.mark.parametrize("damage", [b"\xc1", b"\x93\xa1\xff"], ids=["form", "text"])
def test_an_answer_that_is_damaged_in_the_file_is_replaced(tmp_path: Path, damage: bytes) -> None:
    spool, route = str(tmp_path / "spool.db"), text("WITH RESPONSE 'kept'")
    with hosting(route, spool=spool) as host:
        assert post(host, "7") == (200, b"kept")
    with closing(sqlite3.connect(f"{spool}-seen")) as database, database:
        database.execute("UPDATE seen SET answer = ?", (damage,))
    with hosting(route, spool=spool) as host:
        assert post(host, "7") == (200, b'{"status": "duplicate"}')


# Client mode.


def calls(url: str, policy: str = "balanced") -> str:
    return f"""
    DEFINE ROUTE Calls WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "{url}" WITH ENABLE_CLIENT "true" WITH RETRIES '0'
        ADD ROUTE_CONFIG WITH OVERLOAD_POLICY "{policy}"
        ADD EVENT E WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY '{{payload}}'
            WITH DESTINATION_TOPIC "out" WITH DEDUPE_KEY "{{value.json.id}}"
    """


def test_messages_that_come_twice_are_sent_once(target: Recorder) -> None:
    with hosting(calls(target.url), processes=1) as host:
        client = host.client("out")
        for number in range(20):
            for topic in ("in/a", "in/b"):
                client.publish(topic, b'{"id": %d}' % number)
        client.messages(20)
        for no_key in (b'{"id": ""}', b'{"id": ""}', b'{"id": "last"}'):
            client.publish("in/a", no_key)
            assert client.message()[1] == no_key
    assert len({seen.body for seen in target.take_all()}) == 22
    assert target.arrived.empty()


def test_a_lossless_message_that_was_answered_is_not_sent_again_after_a_kill(target: Recorder, tmp_path: Path) -> None:
    spool = str(tmp_path / "spool.db")
    with hosting(calls(target.url, "lossless"), spool=spool, processes=1) as host:
        client = host.client("out")
        client.publish("in/a", b'{"id": 1}')
        client.message()
        kill(host)
        client.publish("in/a", b'{"id": 1}')
        client.publish("in/a", b'{"id": 2}')
        assert client.message()[1] == b'{"id": 2}'
    with hosting(calls(target.url, "lossless"), spool=spool) as host:
        client = host.client("out")
        client.publish("in/a", b'{"id": 2}')
        client.publish("in/a", b'{"id": 3}')
        assert client.message()[1] == b'{"id": 3}'
    assert [seen.body for seen in target.take_all()] == [b'{"id": 1}', b'{"id": 2}', b'{"id": 3}']
