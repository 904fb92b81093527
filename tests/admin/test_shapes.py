"""What charts, drawing, folded routes and lines for a shell are made of, without a browser."""

import subprocess
from random import Random
from typing import Any

import pytest

from amqtt_rest_bridge.admin.app import compressed
from amqtt_rest_bridge.admin.charts import chart, latency_chart, sparks
from amqtt_rest_bridge.admin.figures import BridgeNumbers, Numbers, RouteNumbers
from amqtt_rest_bridge.admin.flow import Drawing, Edge, Node, RouteState, drawing, edges, edges_around
from amqtt_rest_bridge.admin.history import History, Latency, Sample
from amqtt_rest_bridge.admin.json_objects import csv_text
from amqtt_rest_bridge.admin.pages import StatusPages
from amqtt_rest_bridge.admin.queries import PageQuery, page_query_of
from amqtt_rest_bridge.admin.route_rows import groups, rate_text, sort_rows
from amqtt_rest_bridge.admin.run_page import curl_line, time_line, try_line
from amqtt_rest_bridge.http.exchange import Response, takes_gzip
from amqtt_rest_bridge.lot.model import Route
from tests.support.admin_client import client_route, server_route
from tests.support.route_text import load_text

NOW = 1_700_000_000.0


def routes_of(text: str) -> list[Route]:
    return list(load_text(text).routes)


def drawn_of(text: str, **states: RouteState) -> Drawing:
    """Return the drawing of routes, with the states of some of them by their names."""
    return drawing(edges(routes_of(text)), states)


def test_a_chart_has_its_peak_where_most_went_through_and_axes_that_hold_it() -> None:
    samples = [Sample(10, 0)] * 10 + [Sample(100, 30)] + [Sample(10, 0)] * 9
    drawn = chart(samples, 60, 10.0, NOW)
    assert (drawn.columns, drawn.unit) == (60, "s")
    assert drawn.peak is not None
    assert (drawn.peak.text, drawn.peak.time) == ("13 a second (130 in 10 s)", "2023-11-14T22:11:45.000Z")
    assert [level.text for level in drawn.levels] == ["20/s", "10/s"]
    assert [mark.text for mark in drawn.times] == ["22:03", "22:05", "22:07", "22:09", "22:11", "22:13"]
    assert [mark.time for mark in drawn.times][::5] == ["2023-11-14T22:03:20.000Z", "2023-11-14T22:13:20.000Z"]
    assert drawn.succeeded.startswith("M40 "), "what was before the first sample is left out"
    assert drawn.label == "290 succeeded, 30 failed, highest rate 13 a second (130 in 10 s)"


def test_the_rate_of_a_route_is_drawn_once() -> None:
    text = """DEFINE ROUTE Two WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "http://h" WITH ENABLE_CLIENT "true"
        ADD EVENT A WITH SOURCE_TOPIC "a" WITH METHOD "GET" WITH ENDPOINT "/a"
        ADD EVENT B WITH SOURCE_TOPIC "b" WITH METHOD "GET" WITH ENDPOINT "/b"
    """
    drawn = drawn_of(text, Two=RouteState("Green", "1.5/s"))
    assert [(box.event, box.note) for box in drawn.boxes if box.kind == "route"] == [("A", "1.5/s"), ("B", "")]


@pytest.mark.parametrize(
    ("count", "unit", "peak"),
    [
        (500, "s", "50 a second (500 in 10 s)"),
        (3, "min", "18 a minute (3 in 10 s)"),
        (1, "min", "6 a minute (1 in 10 s)"),
    ],
)
def test_a_chart_has_the_unit_in_which_its_peak_is_one_at_least(count: int, unit: str, peak: str) -> None:
    drawn = chart([Sample(0, count)], 60, 10.0, NOW)
    assert (drawn.unit, drawn.peak and drawn.peak.text) == (unit, peak)


def test_a_chart_without_samples_and_one_of_nothing_are_empty() -> None:
    for samples in ([], [Sample(0, 0)] * 60):
        drawn = chart(samples, 60, 10.0, NOW)
        assert drawn.peak is None
        assert drawn.failed == ""
    assert sparks([], 60) == ("", "")


def test_a_single_sample_is_a_line_in_the_overview() -> None:
    assert [path.count(" ") > 1 for path in sparks([Sample(5, 2)], 60)] == [True, True]


def test_a_week_is_drawn_in_columns_that_add_up_neighbours() -> None:
    drawn = chart([Sample(1, 0)] * 2016, 2016, 300.0, NOW)
    assert drawn.columns <= 120
    assert drawn.label.startswith("2016 succeeded")


def test_latencies_are_lines_with_gaps_where_nothing_was_answered() -> None:
    assert latency_chart([None] * 60, 60) is None
    drawn = latency_chart([None, Latency(5, 20), Latency(10, 40), None, Latency(10, 10)], 60)
    assert drawn is not None
    assert (drawn.p99, drawn.top, drawn.label) == ("M56 38.4h1V12.8h1M59 51.2h1", "50 ms", "highest p99 40 ms")


def test_tries_are_on_the_time_line_from_the_message_to_their_end() -> None:
    tries = [{"time": "2026-01-01T00:00:01.000Z", "ms": 500.0}, {"time": "2026-01-01T00:00:04.000Z", "ms": 1000.0}]
    bars, seconds = time_line(tries, 2500.0)
    assert seconds == 4
    assert [(bar.left, bar.width) for bar in bars] == [(12.5, 12.5), (75.0, 25.0)]


def test_a_table_has_a_column_for_each_member_and_no_formulas() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "1", "error": {"code": "a", "message": '=HYPERLINK("x")'}, "tries": [{"ms": 1.5}], "names": ["a", "b"]},
        {"id": "-2,\n", "error": None, "ms": -1.5, "tries": [], "names": []},
    ]
    assert csv_text(rows).split("\r\n") == [
        "id,error.code,error.message,tries,names,ms", '1,a,"\'=HYPERLINK(""x"")",1,a b,', "\"'-2,\n\",,,,,-1.5", "",
    ]  # fmt: skip


def chained() -> list[Edge]:
    first = client_route("http://a.test", event='WITH ERROR_TOPIC "failed/orders"')
    second = client_route("http://b.test", name="Bill").replace('"orders/+"', '"done/#"').replace('"done/{', '"bill/{')
    third = client_route("http://c.test", name="Mail").replace('"orders/+"', '"failed/#"').replace('"done/{', '"mail/{')
    other = client_route("http://a.test", name="Other").replace('"orders/+"', '"x/+"').replace('"done/{', '"y/{')
    return edges(routes_of(first + second + third + other))


def test_results_error_topics_and_chains_are_drawn_in_columns_from_left_to_right() -> None:
    arrows = chained()
    chains = [(edge.begin.name, edge.end.name) for edge in arrows if edge.kind == "chain"]
    assert sorted(chains) == [("done/{topic.2}", "done/#"), ("failed/orders", "failed/#")]
    errors = [(edge.begin.name, edge.end.name) for edge in arrows if edge.kind == "error"]
    assert errors == [("Orders", "failed/orders")]
    drawn = drawing(arrows, {"Orders": RouteState("Red", "1.5/s")})
    places = {box.name: box.x for box in drawn.boxes}
    way = [
        "orders/+", "Orders", "http://a.test", "done/{topic.2}", "done/#", "Bill", "http://b.test", "bill/{topic.2}",
    ]  # fmt: skip
    assert [places[one] for one in way] == sorted({places[one] for one in way})
    (orders,) = [box for box in drawn.boxes if (box.kind, box.name) == ("route", "Orders")]
    assert (orders.health, orders.note, orders.link) == ("Red", "1.5/s", "/routes/Orders")
    assert len({(box.x, box.y) for box in drawn.boxes}) == len(drawn.boxes), "no box covers another one"
    shown = next(way for way in drawn.ways if way.route.name == "Orders")
    listed = [[box.name for box in boxes] for boxes in (shown.before, shown.after, shown.answers, shown.failures)]
    assert listed == [["orders/+"], ["http://a.test"], ["done/{topic.2}"], ["failed/orders"]]


def test_each_event_of_a_route_with_several_has_a_way_of_its_own() -> None:
    events = """
    ADD EVENT Second WITH SOURCE_TOPIC "b" WITH METHOD "PUT" WITH ENDPOINT "/b" WITH DESTINATION_TOPIC "b/done"
    ADD EVENT Third WITH METHOD "POST" WITH ENDPOINT "/c" WITH DESTINATION_TOPIC "c"
    ADD EVENT Fourth WITH METHOD "PUT" WITH ENDPOINT "/d" WITH DESTINATION_TOPIC "d"
"""
    routes = client_route("http://a.test", config='WITH ENABLE_SERVER "true" WITH SERVER_PORT 8080') + events
    drawn = drawn_of(routes, Orders=RouteState("Green", ""))
    ways = [[box.event or box.name for box in (*way.before, way.route, *way.after, *way.answers)] for way in drawn.ways]
    assert ways == [
        ["orders/+", "Send", "http://a.test", "done/{topic.2}"], ["b", "Second", "http://a.test", "b/done"],
        ["POST :8080/c", "Third", "c"], ["PUT :8080/d", "Fourth", "d"],
    ]  # fmt: skip
    own = [box for box in drawn.boxes if box.kind == "route"]
    assert {(box.name, box.health, box.link) for box in own} == {("Orders", "Green", "/routes/Orders")}
    assert {box.shown for box in own} == {f"Orders: {name}" for name in ("Send", "Second", "Third", "Fourth")}


@pytest.mark.parametrize(
    ("topic", "shown"),
    [
        pytest.param("plant/line/7/temperature", "plant/line/7/temperature", id="it fits"),
        pytest.param("plant/line/7/temperature/celsius/mean", "plant/line/7/temperature/celsius/mean", id="the room"),
        pytest.param(
            "plant/hall/2/line/7/temperature/celsius/mean/hourly", "plant/hall/2/line/…elsius/mean/hourly", id="middle"
        ),
        pytest.param("工場" * 20 + "/+", "工場工場工場工場工場…場工場工場工場/+", id="wide"),
    ],
)
def test_a_name_that_is_too_long_for_its_box_shows_both_ends(topic: str, shown: str) -> None:
    assert drawn_of(client_route("http://a.test").replace("orders/+", topic)).boxes[0].shown == shown


def test_boxes_are_as_wide_as_their_texts_up_to_the_room_of_a_page() -> None:
    route = server_route("Greenhouse_air_temperature").replace("/hook", "/api/greenhouse/air/temperature")
    route = route.replace('"received"', '"greenhouse/north/air/temperature"')
    drawn = drawn_of(route, Greenhouse_air_temperature=RouteState("Green", ""))
    assert [box.shown for box in drawn.boxes] == [box.name for box in drawn.boxes]
    assert len({box.width for box in drawn.boxes}) == 3
    assert drawn.width <= 1216
    assert {box.width for box in drawn_of(server_route()).boxes} == {232}


def test_the_drawing_around_a_node_has_what_leads_to_it_and_from_it() -> None:
    arrows = chained()

    def shown(focus: Node) -> set[str]:
        return {node.name for edge in edges_around(arrows, focus) for node in edge[:2] if node.kind == "route"}

    assert shown(Node("route", "Bill")) == {"Orders", "Bill"}
    assert shown(Node("topic", "orders/+")) == {"Orders", "Bill", "Mail"}
    assert shown(Node("http", "http://a.test")) == {"Orders", "Bill", "Other"}, "a server is that of every route"
    assert shown(Node("topic", "nothing")) == set()


def test_a_circle_is_drawn_with_one_arrow_back() -> None:
    loop = client_route("http://a.test").replace('"done/{topic.2}"', '"orders/again"')
    drawn = drawn_of(loop)
    columns = {box.name: box.x for box in drawn.boxes}
    assert len(drawn.arrows) == 4
    assert columns["orders/+"] < columns["Orders"] < columns["http://a.test"] < columns["orders/again"]


def row(name: str, health: str = "Green", **cells: str) -> dict[str, str]:
    return {"name": name, "health": health, "rate": "-", **cells}


def test_many_routes_are_folded_by_what_their_names_begin_with_and_few_are_not() -> None:
    names = [f"SensorRoom{number}" for number in range(30)] + [f"billing-{number}" for number in range(20)] + ["Odd"]
    folded = groups(sort_rows([row(name, "Red" if name == "billing-7" else "Green") for name in names], "health"))
    assert [(group.name, group.summary) for group in folded] == [
        ("", "1 route: 1 Green"), ("billing", "20 routes: 1 Red, 19 Green"), ("Sensor", "30 routes: 30 Green"),
    ]  # fmt: skip
    assert [group.name for group in groups([row(name) for name in names[:40]])] == [""]


def test_routes_are_sorted_by_numbers_from_the_highest_on_and_those_without_come_last() -> None:
    every = [row("a", rate="9.5"), row("b"), row("C", rate="10.0")]
    assert [one["name"] for one in sort_rows(every, "rate")] == ["C", "a", "b"]
    assert [one["name"] for one in sort_rows(every, "name")] == ["a", "b", "C"]


HOSTILE = "'; echo pwned; $(id) `id` \"\\ \x1b[201~\n\tö %s ***"


def run(**members: Any) -> dict[str, Any]:
    body = {"body": HOSTILE, "body_encoding": "utf-8", "is_cut": False}
    request = {"method": "POST", "url": "http://h/a?b={1}", "headers": [("X-A", HOSTILE), ("Host", "h")], **body}
    message = {"topic": HOSTILE, "payload": HOSTILE, "payload_encoding": "utf-8", "is_cut": False}
    return {"request": request, "message": message, **members}


def words(line: str) -> list[str]:
    """Return the words of a line as bash reads them."""
    program = f"curl() {{ printf '%s\\0' \"$@\"; }}; rest-bridge() {{ printf '%s\\0' \"$@\"; }}; {line}"
    return subprocess.run(["bash", "-c", program], capture_output=True, check=True).stdout.decode().split("\0")[:-1]


def test_a_line_for_a_shell_is_read_as_the_words_that_were_meant_whatever_they_hold() -> None:
    route = routes_of(client_route("http://a.test"))[0]
    curl, trial = curl_line(run(), route), try_line(run(), route)
    assert curl is not None
    assert trial is not None
    for line in (curl, trial):
        assert not [character for character in line if not character.isprintable()]
    assert words(curl) == [
        "-i", "-g", "-X", "POST", "http://h/a?b={1}", "-H", f"X-A: {HOSTILE}", "--data-raw", HOSTILE,
    ]  # fmt: skip
    assert words(trial) == ["try", "t.lot", "--topic", HOSTILE, "--payload", HOSTILE]
    elsewhere = try_line(run(), route, "my secrets")
    assert elsewhere == f"{trial} --secrets-dir 'my secrets'"


def test_what_is_not_shown_whole_has_no_line() -> None:
    route = routes_of(client_route("http://a.test"))[0]
    for change in ({"is_cut": True}, {"body_encoding": "base64", "payload_encoding": "base64"}):
        one = run()
        assert curl_line(one | {"request": one["request"] | change}, route) is None
        assert try_line(one | {"message": one["message"] | change}, route) is None
    for held in ("a\0b", "\0"):  # no word of a shell holds NUL: what is behind it would be left out without a word
        one = run()
        assert curl_line(one | {"request": one["request"] | {"body": held}}, route) is None
        assert try_line(one | {"message": one["message"] | {"payload": held}}, route) is None
    assert curl_line({"request": None}, route) is None
    assert try_line(run(), None) is None
    empty = curl_line({"request": {"method": "GET", "url": "http://h/", "headers": [("X-A", "")]}}, route)
    assert empty == "curl -i -g -X GET http://h/ -H 'X-A;'"  # with a colon curl would leave the header out
    hook = {"method": "POST", "url": "/hook", "headers": [], "body": "1"}
    assert curl_line({"request": hook}, None) is None
    assert curl_line({"request": hook}, route) == "curl -i -g -X POST http://127.0.0.1:8080/hook --data-raw 1"
    assert try_line(run(path="/hook"), route) is None


def numbers_of(count: int, counted: dict[str, tuple[int, int]], random: Random) -> Numbers:
    """Return numbers of routes that are all busy, each in its own way."""
    found = {}
    for number in range(count):
        name = f"{('Sensor', 'Billing', 'Gate', 'Camera', 'Order')[number % 5]}{number:04d}"
        ok, bad = counted.get(name, (random.randrange(100_000), random.randrange(50)))
        ok, bad = counted[name] = ok + random.randrange(300 * (number % 7 + 1)), bad + (random.random() < 0.02)
        status = {
            "health": "Green", "connection": "connected", "latency_ms": {"p50": 20 * random.random(), "p99": 99.9},
            "wait_ms": {"p50": 1.2, "p99": 9 * random.random()}, "last_error": None,
        }  # fmt: skip
        found[name] = RouteNumbers(name, "Green", {}, ok, bad, 0, 0, number % 3, 0, 0, None, None, None, 0, status)
    return Numbers(dict(sorted(found.items())), BridgeNumbers(0, 0, []))


def test_the_page_of_1000_busy_routes_is_under_60_kilobytes_for_a_caller_that_takes_gzip() -> None:
    random, counted, history = Random(1), dict[str, tuple[int, int]](), History()
    for _ in range(61):
        numbers = numbers_of(1000, counted, random)
        history.add(numbers)
    pages = StatusPages(history, "conf", "secrets", 0.0, may_retry=True)
    page = pages.overview(numbers, PageQuery())
    assert page.body.count(b"<tbody data-route=") == 1000
    assert page.body.count(b'<details class="group">') == 5
    assert len(compressed(page).body) < 60_000


@pytest.mark.parametrize(
    ("accepted", "taken"),
    [
        *[("", False), ("gzip", True), ("br, gzip;q=0.5", True), ("gzip;q=0", False), ("gzip; q=0.00", False)],
        *[("br,\tgzip", True), ("gzip;\tq=0", False)],
    ],
)
def test_answers_are_compressed_for_callers_that_take_gzip(accepted: str, taken: bool) -> None:
    assert takes_gzip(accepted) is taken
    assert takes_gzip(None) is False


def test_a_small_answer_is_not_compressed() -> None:
    small = Response("200 OK", (), bytes(100))
    assert compressed(small) is small


def test_what_a_page_is_asked_for_wrongly_is_left_out_and_said() -> None:
    for query in ({"outcome": ["x"]}, {"topic": ["a/#/b"]}, {"since": ["never"]}):
        page, wanted = page_query_of(query, NOW, "Orders")
        assert page.fault
        assert (page.outcome, page.topic, page.since) == ("", "", "")
        assert (wanted.route, wanted.outcome, wanted.topic, wanted.since) == ("Orders", None, None, 0.0)
    page, wanted = page_query_of({"outcome": ["failed"], "since": ["1h"], "sort": ["x"], "range": ["y"]}, NOW, "Orders")
    assert (page.fault, page.sort, page.range) == ("", "health", "10m")
    assert (wanted.outcome, wanted.since, wanted.limit) == ("failed", NOW - 3600, 50)
    assert page_query_of({"started": ["<b>"], "refused": ["12"]}, NOW)[0].started is None


@pytest.mark.parametrize(
    ("rate", "shown"),
    [
        pytest.param(0.0, "0", id="none"),
        pytest.param(1 / 60, "0.017", id="one a minute"),
        pytest.param(0.5, "0.5", id="below one"),
        pytest.param(12.34, "12.3", id="above one"),
    ],
)
def test_a_small_rate_is_not_shown_as_zero(rate: float, shown: str) -> None:
    assert rate_text(rate) == shown
