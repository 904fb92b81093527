"""What a template's page draws of its routes is what the bridge makes of them, or it is not drawn."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from amqtt_rest_bridge.engine.requests import _headers_after, split_base_address
from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.loader import load
from amqtt_rest_bridge.lot.model import ClientEvent, Route, ServerEvent
from amqtt_rest_bridge.lot.parsed_texts import ParsedTexts, routes_in
from amqtt_rest_bridge.lot.sources import read
from template_api.pages.flows import Flow, drawing, flows
from template_api.records import Notebook
from tests.support.library_store import Store, template
from tests.support.route_text import BASIC, CASES, ENVIRONMENT, SECRETS, write_secrets

CONF = Path(__file__).parents[3] / "conf"
_CONSTANT = re.compile(r"\{(env|secret)\.([\w.-]+)(?:\|([^{}]*))?\}")

PARSED = ParsedTexts()
SOURCES = list(read([CASES / "valid", CONF / "library", CONF / "routes"]))


def filled(text: str) -> str:
    """A text with the values of the environment."""

    def value(match: re.Match[str]) -> str:
        if match[1] == "secret":
            return SECRETS[match[2]].decode().strip() if match[2] in SECRETS else match[3]
        return ENVIRONMENT.get(match[2], match[3])

    return _CONSTANT.sub(value, text)


def shown(text: Markup | str) -> str:
    """A text of a page as a browser shows it, with the values of the environment."""
    return filled(html.unescape(re.sub("<[^>]*>", "", str(text))))


def sent(route: Route, event: ClientEvent) -> tuple[str, list[tuple[str, str]], str | None]:
    origin, path = split_base_address(route.config.base_address or "")
    headers = [(name, text.source) for name, text in event.headers]
    given = frozenset(name.lower() for name, _ in headers)
    trailing = _headers_after(route.config, given, has_body=event.body is not None)
    line = f"{event.method} {origin}{path}/{event.endpoint.source.lstrip('/')}"
    headers = [(name, filled(text)) for name, text in [*headers, *trailing]]
    return filled(line), headers, None if event.body is None else filled(event.body.source)


def test_requests_are_shown_as_the_bridge_sends_and_takes_them(tmp_path: Path) -> None:
    """One test, as it parses 170 files."""
    environment = Environment(ENVIRONMENT, write_secrets(tmp_path / "secrets"))
    count = 0
    for source in SOURCES:
        read_routes = {one.name: one for one in routes_in(source.text)}
        for route in load([source], environment, PARSED).routes:
            text = read_routes.get(route.name)
            drawn = {} if text is None else {flow.event: flow for flow in flows(text)}
            count += len(drawn)
            for event in route.client_events:
                if flow := drawn.pop(event.name, None):
                    check_sent(flow, route, event)
            for taken in route.server_events:
                if flow := drawn.pop(taken.name, None):
                    assert shown(flow.line) == f"{taken.method} {taken.endpoint}"
                    assert topics(flow) == topics_of(taken)
            assert not drawn, source.path
    assert count > 150


def check_sent(flow: Flow, route: Route, event: ClientEvent) -> None:
    line, headers, body = sent(route, event)
    assert shown(flow.line).replace("HTTP:", "http:") == line
    ours = [(name, shown(text)) for name, text in flow.headers]
    made = ("Basic USERNAME", "Bearer a token", "sha256=HMAC")  # credentials and signatures, named and not shown
    assert [pair for pair in ours if not pair[1].startswith(made)] == [
        pair for pair in headers if not pair[1].startswith("Basic ")
    ]
    assert flow.body is None if body is None else shown(flow.body or "") == body


def topics(flow: Flow) -> list[str]:
    return [shown(step.text) for step in flow.steps if step.kind == "topic"]


def topics_of(event: ServerEvent) -> list[str]:
    texts = (event.source_topic, event.destination_topic, event.reply_topic)
    return [text if isinstance(text, str) else text.source for text in texts if text is not None]


def test_every_route_of_the_sample_library_is_drawn_whole() -> None:
    for file in sorted((CONF / "library").rglob("*.lotnb")):
        drawn = drawing([notebook(json.loads(file.read_text()))])
        assert drawn.flows, file
        assert drawn.missing == 0, file


def notebook(cells: list[dict[str, Any]]) -> Notebook:
    return Notebook("a.lotnb", 1, True, json.dumps(cells), None)


def drawn_of(text: str) -> Iterator[str]:
    for flow in drawing([notebook([{"language": "lot", "value": text}])]).flows:
        yield " > ".join(f"{step.note}: {shown(step.text)}" if step.note else shown(step.text) for step in flow.steps)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param("", ["a message on: in > R > sends: POST http://api.example.com/x"], id="no result"),
        pytest.param(
            'WITH DESTINATION_TOPIC "out/{topic}" WITH RESPONSE_FORMAT "envelope" WITH WHEN "{value} > 1"',
            [
                "a message on: in > only when {value} > 1: R > sends: POST http://api.example.com/x"
                " > publishes status, headers and body on: out/{topic}"
            ],
            id="condition and envelope",
        ),
        pytest.param(
            "WITH EVERY 15 MINUTES",
            ["a message on: in > or every: 15 MINUTES > R > sends: POST http://api.example.com/x"],
            id="schedule",
        ),
        pytest.param("WITH DESTINATION_TOPIC 'never closed", [], id="a string that never ends"),
        pytest.param("WITH METHOD POST", [], id="a setting that comes twice"),
        pytest.param("ADD EVENT F WITH SOURCE_TOPIC a WITH ENDPOINT b", None, id="an event that lacks its method"),
        pytest.param("ADD THING", [], id="an unknown block"),
        pytest.param("loose text", [], id="text outside of a statement"),
    ],
)
def test_an_event_is_drawn_from_its_topic_to_its_topic_or_not_at_all(settings: str, expected: list[str] | None) -> None:
    text = f"{BASIC}        {settings}\n"
    found = list(drawn_of(text))
    assert len(found) == 1 if expected is None else found == expected
    assert drawing([notebook([{"language": "lot", "value": text}])]).missing == (not expected)


def test_a_read_event_is_drawn_from_its_topic_to_the_request_it_answers() -> None:
    text = """
        DEFINE ROUTE R WITH TYPE REST_API
            ADD REST_API_CONFIG WITH ENABLE_SERVER "true"
            ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "GET" WITH ENDPOINT "/x"
    """
    assert list(drawn_of(text)) == ["the latest message on: in > R > answers: GET :8080/x"]


def test_a_route_whose_modes_hang_on_a_variable_is_not_drawn_but_counted() -> None:
    text = BASIC.replace('"true"', 'GET ENV "ON"')
    drawn = drawing([notebook([{"value": text}, {"language": "markdown", "value": BASIC}])])
    assert (len(drawn.flows), drawn.missing, drawn.asked) == (0, 1, {"ON": "env"})


def test_what_routes_ask_for_is_named_once_with_what_it_is() -> None:
    text = BASIC + (
        '        WITH BODY \'{"site": "{env.SITE|none}", "again": "{env.SITE}"}\'\n        WITH HEADERS\n'
        '            ADD X-Key "Bearer " + GET SECRET "key" // GET SECRET "unused"\n'
    )
    assert drawing([notebook([{"value": text}])]).asked == {"SITE": "env", "key": "secret"}


PARTS = ["DEFINE", "ROUTE", "WITH", "ADD", " ", "\n", '"', "'", "/*", "*/", "//", "\\", "a", "+", "GET", "ENV", "{env."]


@given(st.lists(st.sampled_from(PARTS)))
def test_no_text_raises(parts: list[str]) -> None:
    text = BASIC + "".join(parts)
    assert isinstance(list(routes_in(text)), list)


@pytest.mark.parametrize("size", [15_000, pytest.param(90_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("part", ["/*", '"', "'", "\\\n", "DEFINE\n", "WITH a b ", "\n", '"\n', "+", "*/ /*", "{env."])
def test_no_text_takes_long(part: str, size: int) -> None:
    text = BASIC + part * (size // len(part))
    assert drawing([notebook([{"value": text}])]).missing <= 1


def test_a_hundred_events_are_drawn_and_the_routes_of_further_cells_counted() -> None:
    drawn = drawing([notebook([{"value": BASIC * 50}] * 4)])
    assert (len(drawn.flows), drawn.missing) == (100, 100)


def test_what_authors_write_stays_text_in_the_drawing(sqlite_store: Store) -> None:
    hostile = "<img src=x onerror=alert(1)>&</code></ol><script>"
    text = BASIC.replace('"in"', f'"in/{hostile}"').replace('"/x"', f'"/{{payload|{hostile}}}"')
    text += f"        WITH BODY '{hostile}{{value.json.<b>}}'\n"
    text += f"        WITH HEADERS\n            ADD '{hostile}' '{hostile}'\n"
    cells = [{"language": "lot", "value": text}]
    sqlite_store.bring(template("one", notebooks=[{"filename": "a.lotnb", "cells": cells}]))
    page = sqlite_store.client().page("/templates/one").text
    assert page.count('<div class="flow">') == 1
    assert "<img" not in page
    assert "<script>" not in page
    assert "<b>" not in page


@pytest.mark.parametrize(
    ("setting", "is_sample"),
    [
        pytest.param('ADD REST_API_CONFIG WITH PASSWORD "change-me"', True, id="setting"),
        pytest.param('ADD REST_API_CONFIG WITH AUTHORIZATION "Bearer {env.TOKEN|change-me}"', True, id="default"),
        pytest.param('WITH SIGNATURE_SECRET "change-me"', True, id="setting of an event"),
        pytest.param('WITH HEADERS ADD "X-API-Key" "change-me"', True, id="header"),
        pytest.param('WITH HEADERS ADD "X-Site" "change-me"', False, id="another header"),
        pytest.param('WITH SIGNATURE_SECRET GET SECRET "key"', False, id="secret"),
        pytest.param('WITH HEADERS ADD "X-API-Key" "Bearer {secret.key}"', False, id="placeholder"),
        pytest.param("", False, id="none"),
    ],
)
def test_the_install_line_allows_sample_credentials_where_the_routes_hold_one(
    sqlite_store: Store, setting: str, is_sample: bool
) -> None:
    text = BASIC.rstrip() + "\n" + setting
    if setting.startswith("ADD"):
        text = BASIC.replace("ADD REST_API_CONFIG", setting, 1)
    cells = [{"language": "lot", "value": text}]
    sqlite_store.bring(template("one", notebooks=[{"filename": "a.lotnb", "cells": cells}]))
    page = sqlite_store.client().page("/templates/one").text
    line = page.partition('id="install">')[2].partition("<")[0]
    assert line.startswith("rest-bridge install one --from http")
    assert line.endswith(" --allow-sample-credentials") == is_sample
    assert ("change it before real use" in page) == is_sample


def test_routes_beyond_a_hundred_thousand_characters_are_only_counted() -> None:
    long = {"language": "lot", "value": "DEFINE ROUTE broken WITH TYPE REST_API\n" + "a " * 9_000}
    whole = {"language": "lot", "value": BASIC}
    drawn = drawing([notebook([*[long] * 5, whole]), notebook([long, whole])])
    assert (len(drawn.flows), drawn.missing) == (1, 7)
