"""The engine at its link: calls, retries, ORDERED and reloads, with a scripted server behind it."""

import contextlib
import logging
import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from time import monotonic

import pytest

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.bridge.timers import Pace
from amqtt_rest_bridge.http_client import Exchange, Stopwatch
from amqtt_rest_bridge.link.frames import (
    INITIAL_CREDITS,
    CreditReturn,
    FailedTry,
    Listen,
    Results,
    Returned,
    Stop,
    Stopped,
    Waiting,
)
from amqtt_rest_bridge.model import HttpRequest, HttpResponse, Method, RestApiConfig, Route, RouteConfig, ServerEvent
from amqtt_rest_bridge.placeholders import Place, PlaceholderText
from tests.bridge.engine_rig import BUSY, FINE, Rig, route
from tests.support.gate import Gate
from tests.support.waiting import SECONDS


def test_a_call_that_waits_for_its_next_try_holds_no_worker(rig: Rig) -> None:
    later = HttpResponse(429, "Slow down", (("Retry-After", "3600"),), b"", 0.0)
    rig.network.answer = lambda request: later if request.body == b"first" else FINE
    rig.use(route(), workers=1)
    first = rig.call(b"first")
    waiting = rig.frame(Waiting)
    assert (waiting.call, waiting.change, waiting.for_try) == (first, 1, True)
    second = rig.call(b"second")
    assert rig.ended(1) == [second]


def test_retries_begin_after_half_a_second_and_end_with_the_failure(rig: Rig) -> None:
    rig.network.answer = lambda _: BUSY
    rig.use(route(retries=1))
    started = monotonic()
    call = rig.call(b"1")
    failed = FailedTry(
        "http_status", "the server answered 503 Service Unavailable", catalogue.STATUS_OF_THE_SERVER.hint, 503
    )
    assert rig.frame(Waiting) == Waiting(call, 1, failed=failed)
    assert rig.frame(Waiting) == Waiting(call, -1)
    assert monotonic() - started >= 0.5
    (result,) = rig.frame(Results).results
    assert (result.call, result.status, result.code) == (call, 503, "http_status")
    assert rig.network.requests.qsize() == 2


def test_ordered_calls_wait_for_the_tries_of_the_one_before(rig: Rig) -> None:
    answers = iter([BUSY, FINE, FINE, FINE])
    rig.network.answer = lambda _: next(answers)
    rig.use(route(ordered=True))
    calls = [rig.call(body) for body in (b"1", b"2", b"3")]
    assert rig.network.bodies(4) == [b"1", b"1", b"2", b"3"]
    assert rig.ended(3) == calls


def test_ordered_calls_keep_their_order_over_a_reload(rig: Rig) -> None:
    gate = Gate()
    rig.network.answer = gate.before(lambda _: FINE)
    rig.use(route(ordered=True))
    calls = [rig.call(body) for body in (b"1", b"2")]
    assert rig.network.bodies(1) == [b"1"]
    rig.use(route("/changed", ordered=True))
    calls.append(rig.call(b"3"))
    other = rig.call(b"other", topic="in/other")
    assert rig.network.bodies(1) == [b"other"]  # another topic need not wait
    gate.open.set()
    assert rig.network.bodies(2) == [b"2", b"3"]
    assert [call for call in rig.ended(4) if call != other] == calls


def test_a_replaced_route_gives_its_threads_and_connections_back_when_its_calls_have_ended(rig: Rig) -> None:
    gate = Gate()
    rig.network.answer = gate.before(lambda _: FINE)
    rig.use(route())
    rig.call(b"1")
    rig.network.bodies(1)
    rig.use()
    assert not rig.network.closed.acquire(timeout=0)
    gate.open.set()
    rig.ended(1)
    assert rig.network.closed.acquire(timeout=SECONDS)


@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "ordered"])
def test_a_lossless_call_that_waits_is_tried_again_by_the_changed_definition(rig: Rig, ordered: bool) -> None:
    rig.network.answer = lambda request: FINE if request.url.endswith("/mended") else BUSY
    rig.use(route("/wrong", lossless=True, ordered=ordered))
    calls = [rig.call(b"1", key="k1"), rig.call(b"2", key="k2")]
    rig.frame(Waiting)
    rig.use(route("/mended", lossless=True, ordered=ordered))
    assert sorted(rig.ended(2)) == calls
    assert rig.network.closed.acquire(timeout=SECONDS), "the old definition is still there"


def test_a_lossless_call_whose_route_is_gone_goes_back_to_the_broker(rig: Rig) -> None:
    rig.network.answer = lambda _: BUSY
    rig.use(route(lossless=True, ordered=True))
    calls = [rig.call(b"1", key="k1"), rig.call(b"2", key="k2")]
    rig.frame(Waiting)
    rig.use()
    assert [rig.frame(Returned).call for _ in calls] == calls
    assert rig.network.closed.acquire(timeout=SECONDS)


def test_after_stop_what_runs_ends_and_nothing_more_begins(rig: Rig) -> None:
    gate = Gate()
    rig.network.answer = gate.before(lambda _: FINE)
    rig.use(route(ordered=True), route(name="Plain"), workers=1)
    running = [rig.call(b"1"), rig.call(b"a", name="Plain")]
    rig.network.bodies(2)
    rig.call(b"2")
    rig.call(b"b", name="Plain")
    rig.end.send_now(Stop(5.0))
    with contextlib.suppress(AssertionError):
        rig.frame(Stopped, 0.1)
        raise ValueError("stopped while requests ran")
    gate.open.set()
    assert sorted(rig.ended(2)) == running
    rig.frame(Stopped)
    assert rig.network.requests.empty()


def test_results_that_wait_for_the_broker_leave_before_the_engine_says_that_it_has_stopped(rig: Rig) -> None:
    rig.network.answer = lambda _: HttpResponse(200, "OK", (), b"x" * 16384 * INITIAL_CREDITS, 0.0)
    rig.use(route())
    first, second = rig.call(b"1"), rig.call(b"2")
    rig.network.bodies(2)
    assert rig.ended(1)[0] in (first, second)
    rig.end.send_now(Stop(5.0))
    rig.end.send_now(CreditReturn(2 * INITIAL_CREDITS))
    assert len(rig.frame(Results).results) == 1
    rig.frame(Stopped)


def test_stop_waits_no_longer_than_its_grace(rig: Rig) -> None:
    gate = Gate()
    rig.network.answer = gate.before(lambda _: FINE)
    rig.use(route())
    rig.call(b"1")
    rig.network.bodies(1)
    rig.end.send_now(Stop(0.05))
    rig.frame(Stopped, 2.0)
    gate.open.set()


def test_a_port_is_served_only_where_the_broker_says_so(rig: Rig) -> None:
    event = ServerEvent("E", Method.POST, "/e", destination_topic=PlaceholderText("t", Place.TOPIC, ("t",)))
    config = RestApiConfig(enable_server=True, server_port=7)
    with socket.create_server(("127.0.0.1", 0)) as server:
        rig.end.send_now(Listen([7]), [server])
        rig.use(Route("S", config, server_events=(event,)), ports=[7])
        assert rig.network.served == [7]
        rig.use(Route("S", config, server_events=(event,)), ports=[])
        address = server.getsockname()
    with socket.create_server(address):  # it is free again
        pass


def test_a_lone_call_runs_on_the_thread_that_read_it(rig: Rig) -> None:
    threads: queue.SimpleQueue[str] = queue.SimpleQueue()

    def answer(_request: HttpRequest) -> HttpResponse:
        threads.put(threading.current_thread().name)
        return FINE

    rig.network.answer = answer
    rig.use(route())
    for _ in range(3):
        call = rig.call()
        assert rig.ended(1) == [call]
        assert threads.get(timeout=SECONDS) in ("link-1", "link-2")


def test_calls_that_hang_do_not_stop_the_reading_of_frames(rig: Rig) -> None:
    gate = Gate()
    held = gate.before(lambda _: FINE)
    rig.network.answer = lambda request: FINE if request.body == b"quick" else held(request)
    rig.use(*(route(name=name) for name in "ABC"), workers=1)
    hanging = [rig.call(name=name) for name in "AB"]
    rig.network.bodies(2)
    quick = rig.call(b"quick", name="C")
    assert rig.ended(1) == [quick]
    gate.open.set()
    assert sorted(rig.ended(2)) == hanging


def test_the_engine_ends_with_its_link_though_a_reader_is_at_a_call() -> None:
    rig, gate = Rig(), Gate()
    rig.network.answer = gate.before(lambda _: FINE)
    rig.use(route())
    rig.call()
    rig.network.bodies(1)
    rig.close()
    gate.open.set()


def test_retries_are_logged_once_a_second(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="amqtt_rest_bridge")
    rig.network.answer = lambda _: BUSY
    rig.use(route(lossless=True))
    for _ in range(50):
        rig.call(key="key")
    for _ in range(50):
        rig.frame(Waiting)
    lines = [record.getMessage() for record in caplog.records if ", retry in " in record.getMessage()]
    assert 1 <= len(lines) <= 3
    rig.network.answer = lambda _: FINE
    rig.ended(50)


def test_a_turn_that_comes_at_once_for_the_next_request_of_a_call_is_used_by_that_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that enters a call for its next turn may be slower than the turn."""
    enter, declined = Pace.enter, list[Pace]()

    def enter_and_wait(pace: Pace, start: Callable[[], None], *, first: bool = False) -> None:
        given = threading.Event()

        def start_and_tell() -> None:
            start()
            given.set()

        enter(pace, start_and_tell, first=first)
        if first:
            assert given.wait(SECONDS)

    def decline(pace: Pace) -> None:
        declined.append(pace)

    def exchange(request: HttpRequest, stopwatch: Stopwatch) -> Exchange:
        yield
        yield
        return rig.network.send(request)

    monkeypatch.setattr(Pace, "enter", enter_and_wait)
    monkeypatch.setattr(Pace, "decline", decline)
    monkeypatch.setattr(rig.network, "exchange", exchange)
    rig.use(replace(route(), route_config=RouteConfig(rate_limit=0.0001)))
    calls = [rig.call() for _ in range(20)]
    assert sorted(rig.ended(20)) == calls
    assert declined == []
