"""Callers that close their side while an answer is pending, and those that send on."""

import socket
import struct
from collections.abc import Callable

import pytest

from tests.support.http_ports import Raw, Served, error_code_of, post, served
from tests.support.waiting import eventually


def close(raw: Raw) -> None:
    raw.__exit__()


def reset(raw: Raw) -> None:
    """Close without a goodbye, as a caller's system does that was killed."""
    raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    close(raw)


leaving = pytest.mark.parametrize("leave", [close, reset])


def wait_in_turn(hooks: Served, *bodies: bytes) -> list[Raw]:
    """Connect a caller of the shared reply topic for each body, in this order."""
    callers = []
    for number, body in enumerate(bodies, 1):
        callers.append(Raw(hooks.port).send(post("/one", body)))
        eventually(lambda awaited=number: hooks.in_turn == awaited)  # type: ignore[misc]
    return callers


@leaving
def test_a_caller_that_leaves_before_its_turn_loses_it_and_is_not_published(leave: Callable[[Raw], None]) -> None:
    with served() as hooks:
        first, second, third = wait_in_turn(hooks, b"1", b"2", b"3")
        leave(second)
        eventually(lambda: hooks.broker.counted == [("Hooks", "invalid_request")])
        for caller, reply in ((first, b"one"), (third, b"three")):
            hooks.waiting().arrive(reply)
            assert caller.answer().body == reply
            close(caller)
        assert hooks.bodies == [b"1", b"3"]


@leaving
def test_a_caller_whose_requests_came_at_once_loses_the_turn_of_the_last_one_if_it_leaves(
    leave: Callable[[Raw], None],
) -> None:
    with served() as hooks:
        (first,) = wait_in_turn(hooks, b"1")
        second = Raw(hooks.port).send(post(body=b"hook") + post("/one", b"2"))
        eventually(lambda: hooks.in_turn == 2)
        leave(second)
        eventually(lambda: hooks.broker.counted[-1:] == [("Hooks", "invalid_request")])
        hooks.waiting().arrive(b"one")
        assert first.answer().body == b"one"
        close(first)
        assert hooks.bodies == [b"1", b"hook"]


@leaving
def test_a_caller_that_leaves_once_it_is_published_keeps_its_turn_so_that_its_reply_is_not_given_to_the_next(
    leave: Callable[[Raw], None],
) -> None:
    with served() as hooks:
        first, second = wait_in_turn(hooks, b"1", b"2")
        leave(first)
        eventually(lambda: any(each.has_left for each in hooks.server.port.waiting))
        assert hooks.bodies == [b"1"]
        hooks.waiting().arrive(b"one")
        hooks.waiting().arrive(b"two")
        assert second.answer().body == b"two"
        close(second)


def test_a_caller_that_only_ends_its_sending_gets_an_answer_that_it_lost_its_turn() -> None:
    with served() as hooks:
        first, second = wait_in_turn(hooks, b"1", b"2")
        for caller in (first, second):
            caller.sock.shutdown(socket.SHUT_WR)
        answer = second.answer()
        assert (answer.status, error_code_of(answer)) == (400, "invalid_request")
        hooks.waiting().arrive(b"one")
        assert first.answer().body == b"one"
        close(first)
        close(second)


def test_requests_sent_behind_one_that_waits_are_held_in_bounds() -> None:
    with served() as hooks, hooks.connect() as raw:
        raw.send(post("/ask") + post(body=b"2"))
        reply = hooks.waiting()
        raw.send(post(body=b"x" * 900) * 100)
        (connection,) = hooks.connections
        eventually(lambda: bool(connection._unread) and connection._is_paused)
        assert len(connection._unread) <= 2 * 16_384
        reply.arrive(b"reply")
        assert [raw.answer().status for _ in range(102)] == [200] * 102
