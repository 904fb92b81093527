"""Which requests an endpoint takes: paths, methods, and the answers to those it does not take."""

import json
import uuid

import pytest

from amqtt_rest_bridge.engine import server_mode as endpoints
from amqtt_rest_bridge.engine.server_mode import EndpointTable
from amqtt_rest_bridge.errors import ConfigurationError
from tests.support.answering import Answering, port
from tests.support.http_ports import get, post, served
from tests.support.server_mode import REQUEST_ID, error_code, event, payload, route


def test_routes_share_a_port_and_one_without_server_mode_exposes_nothing() -> None:
    both = Answering(
        route(event(), name="A"), route(event("PUT", "/other", "other"), name="B"),
        route(event(endpoint="/closed"), name="C", enable_server=False),
    )  # fmt: skip
    assert both.ask("POST", "/hook", "1").status_code == both.ask("PUT", "/other", "2").status_code == 200
    assert both.published == [("hook/received", b"1"), ("other", b"2")]
    assert both.broker.counted == [("A", None), ("B", None)]
    assert error_code(both.ask("POST", "/closed", "1")) == "not_found"


def test_only_endpoints_with_parameters_are_compared_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[object] = []
    real = endpoints._Pattern.match

    def match(pattern: endpoints._Pattern[int], given: tuple[str, ...]) -> list[str] | None:
        compared.append(pattern.segments)
        return real(pattern, given)

    monkeypatch.setattr(endpoints._Pattern, "match", match)
    table = EndpointTable([*((f"/a/{number}", "GET", number) for number in range(100)), ("/a/{id}", "PUT", 100)])
    assert len(compared) == 200  # each literal with itself and with /a/{id}
    found = table.find("/a/7")
    assert found is not None
    assert found.allow == "GET, HEAD, OPTIONS, PUT"
    assert table.find("/b/7") is None
    assert len(compared) == 201


# Paths.


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        pytest.param("/hook", "/hook/", id="a slash more"),
        pytest.param("/hook", "/Hook", id="another case"),
        pytest.param("/hook", "/", id="the root"),
        pytest.param("/hook", "/hook/x", id="a segment more"),
        pytest.param("/hook", "//hook", id="an empty segment more"),
        pytest.param("/hook", "/hook%2F", id="an encoded slash more"),
        pytest.param("/hook", "/./hook", id="a dot segment more"),
        pytest.param("/hook", "/x/../hook", id="a detour"),
        pytest.param("/things/{id}", "/things/", id="an empty segment for a parameter"),
    ],
)
def test_any_other_path_is_not_found_and_publishes_nothing(endpoint: str, path: str) -> None:
    hooks = port(event(endpoint=endpoint))
    for method in ("POST", "OPTIONS"):
        result = hooks.ask(method, path, "1")
        assert (result.status_code, error_code(result)) == (404, "not_found")
    assert hooks.published == []
    assert hooks.broker.counted == []  # it was a request of no event


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        pytest.param("/hook", "/hook?a=1", id="with a query"),
        pytest.param("/hook", "/%68ook", id="a letter encoded"),
        pytest.param("/café", "/caf%C3%A9", id="beyond ASCII"),
        pytest.param("/caf%C3%A9", "/caf%c3%a9", id="encoded in the endpoint as well"),
        pytest.param("/a/", "/a/", id="slash at the end"),
        pytest.param("/a//b", "/a//b", id="empty segment"),
        pytest.param("/a b", "/a%20b", id="space"),
        pytest.param("/a%2Fb", "/a%2fb", id="encoded slash"),
        pytest.param("/x{id}", "/x%7Bid%7D", id="braces around a part of a segment are text"),
        pytest.param("/", "/", id="root"),
        pytest.param("/hook", "http://example.net/hook?x=1", id="a target that names the host"),
        pytest.param("/", "http://h", id="a target with nothing but a host"),
    ],
)
def test_the_same_path_in_another_spelling_is_found(endpoint: str, path: str) -> None:
    assert port(event(endpoint=endpoint)).ask("POST", path, "1").status_code == 200


def test_path_parameters_are_decoded_once_each() -> None:
    things = port(
        event("GET", "/things/{id}/{part.name}", sends=payload('["{path.id}", "{path.part.name}", "{path}"]'))
    )
    assert things.ask("GET", "/things/a%2Fb%20%2525/%C3%A4").status_code == 200
    assert json.loads(things.broker.published[0].payload) == ["a/b %25", "ä", "/things/a/b %25/ä"]


def test_a_literal_segment_is_preferred_to_a_parameter() -> None:
    things = port(
        event("GET", "/things/{id}/state", "by-id", name="A"),
        event("GET", "/things/all/{what}", "all", name="B"),
        event("POST", "/things/{id}/state", "posted", name="C"),
        event("POST", "/things/new/state", "made", name="D"),
    )
    for method, path in (("GET", "7"), ("GET", "all"), ("POST", "all"), ("GET", "new"), ("POST", "new")):
        things.ask(method, f"/things/{path}/state", "x" if method == "POST" else None)
    assert [topic for topic, _ in things.published] == ["by-id", "all", "posted", "by-id", "made"]
    assert things.ask("PUT", "/things/new/state", "x").headers["allow"] == "GET, HEAD, OPTIONS, POST"


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/%", id="percent alone"),
        pytest.param("/%zz", id="no hexadecimal digits"),
        pytest.param("/a%00b", id="NUL"),
        pytest.param("/a%0d%0aSet-Cookie:x", id="line break"),
        pytest.param("/%7f", id="DEL"),
        pytest.param("/%ff", id="not UTF-8"),
        pytest.param("/%c0%ae", id="overlong UTF-8"),
        pytest.param("/a#b", id="fragment"),
        pytest.param("/a\tb", id="tab as it is"),
        pytest.param("a", id="no slash at the start"),
    ],
)
def test_a_path_that_is_none_is_an_invalid_request(path: str) -> None:
    result = port(event("GET", "/{any}")).ask("GET", path)
    assert (result.status_code, error_code(result)) == (400, "invalid_request")


# Methods.


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_each_method_publishes(method: str) -> None:
    hooks = port(event(method))
    assert hooks.ask(method, "/hook", "x" if method in ("POST", "PUT") else None).status_code == 200
    assert len(hooks.published) == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "BREW", "PATCH", "WEBSOCKET"])
def test_another_method_is_refused_with_what_is_allowed(method: str) -> None:
    hooks = port(event(), event("PUT", name="Put"))
    result = hooks.ask(method, "/hook")
    assert (result.status_code, error_code(result)) == (405, "method_not_allowed")
    assert result.headers["allow"] == "OPTIONS, POST, PUT"


@pytest.mark.parametrize(
    ("path", "allow"),
    [("/hook", "DELETE, GET, HEAD, OPTIONS"), ("*", "DELETE, GET, HEAD, OPTIONS, POST, PUT")],
    ids=["of an endpoint", "of the whole port"],
)
def test_options_are_answered_with_what_is_allowed_and_publish_nothing(path: str, allow: str) -> None:
    hooks = port(event("GET"), event("DELETE", name="Delete"))
    result = hooks.ask("OPTIONS", path)
    assert (result.status_code, result.content, result.headers["allow"]) == (204, b"", allow)
    assert hooks.published == []


def test_head_is_answered_like_get_and_publishes_nothing() -> None:
    hooks = port(event("GET"))
    head, same = hooks.ask("HEAD", "/hook"), hooks.ask("GET", "/hook")
    assert head == same  # the HTTP server leaves the body out
    assert len(hooks.published) == 1


# Ids, mistakes and errors.


def test_every_answer_has_a_request_id_of_its_own() -> None:
    with served() as hooks, hooks.connect() as raw:
        answers = [raw.ask(data) for data in (post(), post(), post("/none"), get("/hook"), b"broken\r\n\r\n")]
    assert [answer.status for answer in answers] == [200, 200, 404, 405, 400]
    ids = {answer.headers["X-Request-ID"] for answer in answers}
    assert len(ids) == 5
    assert all(uuid.UUID(made).version == 4 for made in ids)


def test_the_callers_own_request_id_is_not_taken() -> None:
    hooks = port(event(sends=payload('"{request_id}"')))
    hooks.ask("POST", "/hook", "1", X_Request_ID="mine")
    assert hooks.published == [("hook/received", f'"{REQUEST_ID}"'.encode())]


def test_the_same_method_and_path_twice_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match=r"GET /a/\{y\} is defined twice"):
        port(event("GET", "/a/{x}", name="A"), event("GET", "/a/{y}", name="B"))


def test_a_failure_of_our_own_shows_the_caller_nothing(caplog: pytest.LogCaptureFixture) -> None:
    hooks = port(event())
    hooks.broker.outcomes.append(ZeroDivisionError("secret detail"))
    result = hooks.ask("POST", "/hook", "1")
    assert (result.status_code, error_code(result)) == (500, "internal_error")
    assert "secret" not in result.text
    assert REQUEST_ID in caplog.text
    assert "secret detail" in caplog.text
