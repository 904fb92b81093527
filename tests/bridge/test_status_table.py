"""Route status as a table."""

import json
import re
from typing import Any

import pytest

from amqtt_rest_bridge.broker.status_client import parse_status
from amqtt_rest_bridge.cli.status_table import in_order, summary, table


def status(name: str = "Orders", **members: Any) -> dict[str, Any]:
    """Give a status payload as the plugin publishes it, with some members changed."""
    return {
        "name": name,
        "type": "REST_API",
        "health": "Green",
        "connection": "connected",
        "errors": {"total": 3, "consecutive": 0},
        "messages": {
            "total": 1234, "succeeded": 1200, "failed": 30, "retried": 7, "refused": 4, "queued": 5, "in_flight": 16,
        },
        "last_success": "2026-01-31T12:00:00.123Z",
        "last_error": {"time": "2026-01-31T11:00:00.000Z", "code": "timeout", "message": "no answer within 5 s"},
        "latency_ms": {"p50": 12.345, "p99": 250.0},
        "uptime_s": 60.5,
        "timestamp": "2026-01-31T12:00:01.000Z",
    } | members  # fmt: skip


def test_table_has_a_line_for_every_route_in_order_of_names() -> None:
    assert table([status("b"), status("A", last_error=None), status("c", health="Red")]) == [
        "ROUTE  HEALTH  CONNECTION  TOTAL    OK  FAILED  RETRIED  REFUSED  QUEUED  IN FLIGHT  P50 MS  P99 MS  "
        "LAST ERROR",
        "A      Green   connected    1234  1200      30        7        4       5         16    12.3   250.0  -",
        "b      Green   connected    1234  1200      30        7        4       5         16    12.3   250.0  "
        "timeout no answer within 5 s 2026-01-31T11:00:00.000Z",
        "c      Red     connected    1234  1200      30        7        4       5         16    12.3   250.0  "
        "timeout no answer within 5 s 2026-01-31T11:00:00.000Z",
    ]


def test_columns_grow_with_what_is_in_them() -> None:
    title, row = table([status("A route with a long name", messages={"total": 10_000_000})])
    assert title.index("HEALTH") == row.index("Green") == len("A route with a long name") + 2
    assert title.index("TOTAL") + len("TOTAL") == row.index("10000000") + len("10000000")


def test_table_without_routes_has_a_title_alone() -> None:
    (title,) = table([])
    assert title.startswith("ROUTE  HEALTH")


def test_member_that_is_missing_or_null_is_a_dash() -> None:
    (_, row) = table([{"name": "a", "latency_ms": {"p50": None}, "messages": 3, "last_error": {}}])
    assert row.split() == ["a", *["-"] * 12]


def test_values_of_other_types_are_shown_as_json() -> None:
    (_, row) = table([status(health=["Red"], connection=True)])
    assert '["Red"]' in row
    assert "true" in row


def test_control_characters_do_not_reach_the_terminal() -> None:
    lines = table([status("a\x1b[2J", last_error={"code": "x\r\n", "message": "\x07"})])
    assert all(line.isprintable() for line in lines)


def test_lines_are_cut_to_the_width_of_the_terminal() -> None:
    lines = table([status(), status("b")], width=40)
    assert [len(line) for line in lines] == [40, 40, 40]


@pytest.mark.parametrize(
    ("height", "last"),
    [
        pytest.param(6, "r4 ", id="room-for-all"),
        pytest.param(5, "... and 2 more", id="one-too-many"),
        pytest.param(2, "... and 5 more", id="room-for-none"),
    ],
)
def test_rows_beyond_the_height_are_counted(height: int, last: str) -> None:
    lines = table([status(f"r{number}") for number in range(5)], height=height)
    assert len(lines) == height
    assert lines[-1].startswith(last)


def test_colours_change_nothing_but_the_colour() -> None:
    statuses = [status("a"), status("b", health="Yellow"), status("c", health="Red"), status("d", health="Blue")]
    plain, coloured = table(statuses, width=100), table(statuses, width=100, colour=True)
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in coloured] == plain
    assert [re.findall(r"\x1b\[(\d+)m", line) for line in coloured] == [
        ["1", "0"], ["32", "0"], ["33", "0"], ["31", "0"], [],
    ]  # fmt: skip


def test_health_that_is_cut_off_has_no_colour() -> None:
    (_, row) = table([status()], width=9, colour=True)
    assert row == "Orders  G"


@pytest.mark.parametrize(
    ("healths", "text"),
    [
        pytest.param([], "0 routes", id="none"),
        pytest.param(["Green"], "1 route: 1 Green", id="one"),
        pytest.param(["Green", "Red", "Green", "Yellow"], "4 routes: 1 Red, 1 Yellow, 2 Green", id="gravest-first"),
        pytest.param(["Green", "Blue", None], "3 routes: 1 Green, 1 -, 1 Blue", id="unknown-ones-last"),
    ],
)
def test_summary_counts_routes_by_health(healths: list[str | None], text: str) -> None:
    assert summary(status(health=health) for health in healths) == text


def test_order_does_not_depend_on_case() -> None:
    assert [one["name"] for one in in_order([status("b"), status("a"), status("B"), status("A")])] == list("AaBb")


def test_payload_is_read() -> None:
    assert parse_status(json.dumps(status()).encode()) == status()


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="no-json"),
        pytest.param(b"\xff", id="no-text"),
        pytest.param(b"[]", id="list"),
        pytest.param(b"{}", id="no-name"),
        pytest.param(b'{"name": 3}', id="name-of-another-type"),
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_payload_that_is_no_status_is_none(payload: bytes) -> None:
    assert parse_status(payload) is None
