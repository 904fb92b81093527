"""Route status as a table."""

import io
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from amqtt_rest_bridge.cli.status import parse_status
from amqtt_rest_bridge.cli.status_table import counters_age, route_table, summary


def status(name: str = "Orders", **members: Any) -> dict[str, Any]:
    """Return a status payload as the plugin publishes it, with some members changed."""
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


NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC).timestamp()


def lines(*statuses: dict[str, Any], width: int = 200, **options: Any) -> list[str]:
    """Return the table as a terminal of so many columns shows it."""
    console = Console(file=io.StringIO(), width=width, highlight=False, **options)
    with console.capture() as captured:
        console.print(route_table(statuses, console, NOW))
    return captured.get().splitlines()


def test_table_has_a_line_for_every_route_in_order_of_names_and_the_errors_below() -> None:
    assert lines(status("b"), status("A", last_error=None), status("c", health="Red")) == [
        "ROUTE  HEALTH  CONNECTION  TOTAL    OK  FAILED  RETRIED  REFUSED  QUEUED  IN FLIGHT  P50 MS  P99 MS",
        "A      Green   connected    1234  1200      30        7        4       5         16    12.3   250.0",
        "b      Green   connected    1234  1200      30        7        4       5         16    12.3   250.0",
        "c      Red     connected    1234  1200      30        7        4       5         16    12.3   250.0",
        "b: last error, Green now: timeout: no answer within 5 s (1 h ago)",
        "c: timeout: no answer within 5 s (1 h ago)",
    ]


def test_table_fits_80_columns_without_the_columns_that_are_zero_for_every_route() -> None:
    usual = {"total": 98_765, "succeeded": 98_700, "failed": 65, "retried": 7, "refused": 0, "in_flight": 1}
    title, row, _ = lines(status("Intake", messages=usual), width=80)
    assert title == "ROUTE  HEALTH CONNECTION TOTAL    OK FAILED RETRIED IN FLIGHT P50 MS P99 MS"
    assert max(len(title), len(row)) <= 80
    assert row.endswith(" 250.0")


def test_members_of_other_publishers_may_be_missing_or_null_and_hold_control_characters_or_markup() -> None:
    odd = {"name": "a", "latency_ms": {"p50": None}, "messages": 3, "last_error": {}}
    assert lines(odd, status("b"))[1].split() == ["a", *["-"] * 11]
    assert "a: - (at -)" in lines(odd)
    shown = lines(status("a\x1b[2J", last_error={"code": "x\r\n", "message": "\x07", "time": "\x1b"}))
    assert len(shown) == 3
    assert all(line.isprintable() for line in shown)
    error = {"code": "[link=http://evil]x[/link]", "message": ":smile: [/]", "time": "[red]"}
    _, row, below = lines(status("[bold]x[/bold]", health="[red]", last_error=error))
    assert row.startswith("[bold]x[/bold]  [red] ")
    assert below == "[bold]x[/bold]: [link=http://evil]x[/link]: :smile: [/] (at [red])"


def test_an_endless_text_of_another_publisher_is_cut() -> None:
    """On a broker that workers share, anyone who may publish there writes names and errors."""
    endless = "x" * 100_000
    statuses = [
        status(endless, messages={"total": [1] * 100_000}, last_error={"time": endless, "code": endless}),
        status("Orders"),
    ]
    shown = lines(*statuses, width=10_000)
    assert shown[1].startswith("Orders")
    assert max(len(line.rstrip()) for line in shown) < 9_000


NUMBERS = ("1234", "1200", "30", "7", "4", "5", "16", "12.3", "250.0")


@pytest.mark.parametrize("width", [200, 100, 80, 60, 40, 30])
@pytest.mark.parametrize("name", ["Orders", "Intake_of_orders_from_Porto_and_its_two_warehouses.v2", "工場" * 20])
def test_every_number_and_every_name_is_whole_at_any_width(width: int, name: str) -> None:
    shown = lines(status(name, last_error=None), status("b", last_error=None), width=width)
    assert max(map(cell_len, shown)) <= width
    words = [word for line in shown for word in line.split()]
    assert [words.count(number) for number in NUMBERS] == [2] * len(NUMBERS)
    for title in ("ROUTE", "HEALTH", "CONNECTION", "TOTAL", "FAILED", "REFUSED", "QUEUED", "P50", "P99"):
        assert title in words
    text = "".join(line.split(" ")[0] for line in shown)
    assert text.count(name) == words.count("ROUTE")


def test_columns_that_do_not_fit_go_below() -> None:
    assert lines(status("b", last_error=None), status("a", last_error=None), width=50) == [
        "ROUTE HEALTH CONNECTION TOTAL   OK FAILED RETRIED",
        "a     Green  connected   1234 1200     30       7",
        "b     Green  connected   1234 1200     30       7",
        "ROUTE REFUSED QUEUED IN FLIGHT P50 MS P99 MS",
        "a           4      5        16   12.3  250.0",
        "b           4      5        16   12.3  250.0",
    ]


def test_a_worker_that_is_away_is_never_green_and_a_time_that_this_machine_cannot_show_is_text() -> None:
    moment = datetime.now().astimezone().replace(hour=12, minute=34, second=56)
    away = status("a", workers=[], health="away", away_since=moment.isoformat(), last_error=None)
    title, first, second = lines(away, status("b", workers=["x", "y"], last_error=None))
    assert title.startswith("ROUTE  WORKERS  HEALTH")
    assert first.startswith("a            0  away, last seen 12:34:56  -  ")
    assert second.startswith("b            2  Green ")
    assert summary([away, status("b")]) == "2 routes: 1 away, 1 Green"
    (_, row) = lines(status("a", health="away", away_since="0001-01-01T00:00:00+23:59", last_error=None))
    assert row.startswith("a      away, last seen 0001-01-01T00:00:00+23:59  -  ")


def test_published_counters_have_the_age_of_the_oldest_and_those_that_were_asked_for_their_time() -> None:
    ages = [status("a", timestamp="2026-01-31T11:59:32Z"), status("b", timestamp="2026-01-31T11:59:50Z")]
    gone = status("c", timestamp="2026-01-01T00:00:00Z", away_since="2026-01-01T00:00:00Z")
    assert counters_age([*ages, gone, status("d", timestamp="soon")], NOW, is_live=False) == "counters up to 28 s old"
    assert counters_age([gone], NOW, is_live=False) is None
    moment = datetime.now().astimezone().replace(hour=12, minute=34, second=56)
    assert counters_age([status("a", timestamp=moment.isoformat())], NOW, is_live=True) == "as of 12:34:56"


def test_colours_change_nothing_but_the_colour() -> None:
    statuses = [status("a"), status("b", health="Yellow"), status("c", health="Red"), status("d", health="Blue")]
    coloured = lines(*statuses, force_terminal=True, color_system="standard", legacy_windows=False)
    assert [re.sub(r"\x1b\[[\d;]*m", "", line) for line in coloured] == lines(*statuses)
    assert [re.findall(r"\x1b\[(3\d)m", line) for line in coloured[1:5]] == [["32"], ["33"], ["31"], []]


@pytest.mark.parametrize(
    ("time", "age"),
    [
        pytest.param("2026-01-31T12:00:00.000Z", "0 s ago", id="now"),
        pytest.param("2026-01-31T11:59:01Z", "59 s ago", id="seconds"),
        pytest.param("2026-01-31T11:01:00+00:00", "59 min ago", id="minutes"),
        pytest.param("2026-01-30T12:00:01", "23 h ago", id="hours-without-an-offset"),
        pytest.param("2026-01-01T12:00:00Z", "30 d ago", id="days"),
        pytest.param("2027-01-01T12:00:00Z", "0 s ago", id="a-clock-that-is-ahead"),
        pytest.param("yesterday", "at yesterday", id="no-time"),
        pytest.param("0001-01-01T00:00:00+23:59", "at 0001-01-01T00:00:00+23:59", id="before-all-times"),
    ],
)
def test_age_of_an_error_is_in_its_largest_unit(time: str, age: str) -> None:
    shown = lines(status(health="Red", last_error={"code": "timeout", "time": time}))
    assert shown[-1] == f"Orders: timeout ({age})"


@pytest.mark.parametrize(
    ("healths", "text"),
    [
        pytest.param([], "0 routes", id="none"),
        pytest.param(["Green"], "1 route: 1 Green", id="one"),
        pytest.param(["Green", "Red", "Green", "Yellow"], "4 routes: 1 Red, 1 Yellow, 2 Green", id="worst-first"),
        pytest.param(["Green", "Blue", None], "3 routes: 1 Green, 1 -, 1 Blue", id="unknown-ones-last"),
    ],
)
def test_summary_counts_routes_by_health(healths: list[str | None], text: str) -> None:
    assert summary(status(health=health) for health in healths) == text


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
def test_payload_that_is_not_a_status_is_none(payload: bytes) -> None:
    assert parse_status(payload) is None


def test_what_messages_waited_has_a_column_beside_what_the_server_took() -> None:
    title, row, _ = lines(status(wait_ms={"p50": 0.5, "p99": 10_006.0}))
    assert title.endswith("P99 MS  WAIT P99")
    assert row.split()[-2:] == ["250.0", "10006.0"]
