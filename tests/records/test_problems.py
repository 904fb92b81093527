"""Problems: what went wrong, each kind once, with what its operator does about it."""

import pytest

from amqtt_rest_bridge import catalogue
from amqtt_rest_bridge.records.problems import _OPERATOR_HINTS, hint_of


@pytest.mark.parametrize(
    ("code", "status", "hint"),
    [
        pytest.param("http_status", 404, catalogue.STATUSES[404].hint, id="status of a server"),
        pytest.param("http_status", 499, catalogue.HTTP_STATUS.hint, id="status without a hint of its own"),
        pytest.param("timeout", None, catalogue.TIMEOUT.hint, id="failure"),
        pytest.param("unauthorized", 401, _OPERATOR_HINTS["unauthorized"], id="answer for its caller"),
        pytest.param("method_not_allowed", 405, catalogue.METHOD_NOT_ALLOWED.hint, id="answer"),
        pytest.param("no_such_code", None, None, id="unknown"),
        pytest.param(None, 200, None, id="none"),
    ],
)
def test_a_problem_has_the_hint_for_its_operator(code: str | None, status: int | None, hint: str | None) -> None:
    assert hint_of(code, status) == hint
    assert _OPERATOR_HINTS.keys() <= catalogue.ANSWERS.keys()
