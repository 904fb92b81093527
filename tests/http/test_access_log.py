"""The access log: one JSON line for each answer, in a file that may be moved away."""

import json
import re
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.http.access_log import AccessLog
from tests.support.http_ports import get, post, served

ENTRY = {"request_id": "id", "path": "/x", "status": 200}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def test_every_answer_has_a_line_with_its_request_id(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path), ("route", "event"))
    with served(access_log=log) as hooks, hooks.connect() as raw:
        hooks.broker.on_wait = lambda _topic: b"reply"
        answers = [
            raw.ask(post("/hook?token=secret", b"abc", "Authorization: Basic c2VjcmV0")),
            raw.ask(get("/none"), "GET"),
            raw.ask(post("/ask")),
            raw.ask(b"broken\r\n\r\n"),
        ]
    log.close()
    lines = lines_of(path)
    assert [line["request_id"] for line in lines] == [answer.headers["X-Request-ID"] for answer in answers]
    assert {uuid.UUID(line["request_id"]).version for line in lines} == {4}
    assert [line["status"] for line in lines] == [200, 404, 200, 400]
    assert [line["code"] for line in lines] == [None, "not_found", None, "invalid_request"]
    assert [line["event"] for line in lines] == ["Hook", None, "Ask", None]
    assert lines[0].items() >= {
        "remote": "127.0.0.1", "method": "POST", "path": "/hook", "route": "Hooks", "request_bytes": 3,
        "response_bytes": len(answers[0].body),
    }.items()  # fmt: skip
    assert 0 <= lines[0]["ms"] < 10_000
    text = path.read_text(encoding="ascii")
    assert "secret" not in text
    assert "c2VjcmV0" not in text


def test_a_line_holds_what_it_should_and_a_caller_cannot_write_lines_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path), ("route", "event"))
    with served(access_log=log) as hooks:
        hooks.ask(get("/none"), "GET")
        hooks.ask(get('/a"\x85\x0b%0a{"status":200}'), "GET")
    log.close()
    assert len(lines_of(path)) == 2
    line = path.read_text().splitlines()[0]
    assert re.search(r'"time":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"', line)
    assert re.sub(r'"(time|request_id)":"[^"]+"|"(response_bytes|ms)":[0-9.]+', r'"\1\2":0', line) == (
        '{"time":0,"request_id":0,"remote":"127.0.0.1","method":"GET","path":"/none","status":404,'
        '"code":"not_found","route":null,"event":null,"request_bytes":0,"response_bytes":0,"ms":0}'
    )


def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(str(path), look_seconds=0.0)
    log.write(ENTRY)
    path.rename(tmp_path / "access.log.1")
    log.write(ENTRY)
    path.rename(tmp_path / "access.log.2")
    path.write_bytes(b"")
    log.write(ENTRY)
    log.close()
    assert [len(lines_of(tmp_path / name)) for name in ("access.log.1", "access.log.2", "access.log")] == [1, 1, 1]


def test_several_writers_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    with closing(AccessLog(str(path))) as one, closing(AccessLog(str(path))) as other:
        for _ in range(50):
            one.write(ENTRY)
            other.write(ENTRY)
    assert len(lines_of(path)) == 100


def test_a_file_that_cannot_be_opened_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"access_log .* cannot be opened: Is a directory"):
        AccessLog(str(tmp_path))


def test_a_full_disk_is_logged_once_and_harms_no_request(caplog: pytest.LogCaptureFixture) -> None:
    log = AccessLog("/dev/full")
    with served(access_log=log) as hooks:
        assert [hooks.ask(post()).status for _ in range(3)] == [200, 200, 200]
    log.close()
    assert caplog.text.count("No space left on device") == 1
