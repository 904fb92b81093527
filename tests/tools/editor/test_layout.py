"""The canonical layout: texts read as before, laid out twice is laid out once, comments stay."""

import functools
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from amqtt_rest_bridge.errors import Severity
from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.grammar import parsing
from amqtt_rest_bridge.lot.loader import load
from amqtt_rest_bridge.lot.parsed_texts import parse_text
from amqtt_rest_bridge.lot.sources import Source, read
from amqtt_rest_bridge.tools.editor.layout import laid_out
from tests.lot.test_fuzz import mutations
from tests.support.documents import ROOT
from tests.support.route_text import BASIC, ENVIRONMENT, load_text, plain, write_secrets

COMMENT_OR_STRING = re.compile(r'//[^\n]*|--[^\n]*|/\*[\s\S]*?\*/|"(?:[^"\\]|\\.)*"')
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\n\n\n  ", " // c\n", "\n-- c d\n", " /* c */ ", "/*c*/", "\n/* c\n d */\n"]


@pytest.fixture(scope="module")
def secrets_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_secrets(tmp_path_factory.mktemp("secrets"))


def is_readable(text: str) -> bool:
    return all(fault.severity is not Severity.ERROR for fault in parse_text(text).faults)


def what_is_read(text: str, secrets_dir: Path) -> Any:
    loaded = load([Source("t.lot", text)], Environment(ENVIRONMENT, secrets_dir))
    faults = sorted((str(fault.severity), fault.message) for fault in loaded.faults)
    return plain(loaded.routes), [(severity, re.sub(r"line \d+", "", message)) for severity, message in faults]


def check_layout(text: str, secrets_dir: Path) -> None:
    after = laid_out(text)
    if after == text:
        return
    assert laid_out(after) == after
    assert "".join(after.split()).upper() == "".join(text.split()).upper()
    assert what_is_read(after, secrets_dir) == what_is_read(text, secrets_dir)


@pytest.mark.parametrize(
    ("folders", "step", "number"),
    [
        pytest.param(["conf", "tests/lot/cases/valid"], 3, 33, id="a third of what can be read"),
        pytest.param(["conf", "tests"], 1, 200, id="all", marks=pytest.mark.long),
    ],
)
def test_every_route_file_reads_as_before_and_is_laid_out_once(
    folders: list[str], step: int, number: int, secrets_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = functools.cache(parsing.parse)  # each text is parsed once for all that is asked of it
    monkeypatch.setattr("amqtt_rest_bridge.lot.parsed_texts.parse", parse)
    monkeypatch.setattr("amqtt_rest_bridge.tools.editor.layout.parse", parse)
    found = [source for source in read([ROOT / name for name in folders]) if not source.faults][::step]
    sources = [source for source in found if is_readable(source.text)]
    assert len(sources) > number
    for source in sources:
        check_layout(source.text, secrets_dir)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=mutations())
def test_a_damaged_file_that_can_still_be_read_reads_as_before(case: tuple[str, bytes], secrets_dir: Path) -> None:
    name, content = case
    text = content.decode("utf-8-sig", "replace")
    assume(name.endswith(".lot") and is_readable(text))
    check_layout(text, secrets_dir)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_layout_of_a_route_gives_the_same_route(data: st.DataObject, secrets_dir: Path) -> None:
    route = BASIC + 'WITH BODY "a" + get Env TENANT + "\\"\\n" WITH HEADERS ADD X-A 15'
    words = re.findall(r'"(?:[^"\\]|\\.)*"|\S+', route)
    spaces = st.sampled_from(SPACES)
    text = data.draw(st.sampled_from(["", "\n", "// c\n"])) + "".join(
        word + (data.draw(spaces) if data.draw(st.booleans()) else " ") for word in words
    )
    assume(is_readable(text))
    check_layout(text, secrets_dir)
    kept, before = (COMMENT_OR_STRING.findall(one) for one in (laid_out(text), text))
    assert [one.strip() for one in kept] == [one.strip() for one in before]


LAYOUTS = [
    pytest.param(
        "define route R with type rest_api add rest_api_config with enable_client 'true' add event E with headers "
        'add x-a "1" with body get env "A"+\'b\'',
        """\
DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH ENABLE_CLIENT 'true'
    ADD EVENT E
        WITH HEADERS
            ADD x-a "1"
        WITH BODY GET ENV "A" + 'b'
""",
        id="each statement has a line; names, strings and headers stay",
    ),
    pytest.param(
        """\
  // of R
  DEFINE ROUTE R WITH TYPE REST_API // one
\tADD EVENT E      // aligned
\t\tWITH RETAIN true // not



\t\t\t// of the body
\t\tWITH BODY "a"
  +   "b"
\t\t// of E, at its end
\t// of F
\tADD EVENT F


// of the next
DEFINE ACTION  x
   do  this
DEFINE ROUTE S WITH TYPE REST_API""",
        """\
// of R
DEFINE ROUTE R WITH TYPE REST_API // one
    ADD EVENT E      // aligned
        WITH RETAIN true // not

        // of the body
        WITH BODY "a"
            + "b"
        // of E, at its end
    // of F
    ADD EVENT F

// of the next
DEFINE ACTION  x
   do  this
DEFINE ROUTE S WITH TYPE REST_API
""",
        id="comments stay; other definitions are not touched",
    ),
    pytest.param(
        'DEFINE ROUTE R WITH TYPE REST_API\r\nADD EVENT E WITH BODY "a\r\n  b"\r\n',
        'DEFINE ROUTE R WITH TYPE REST_API\r\n    ADD EVENT E\r\n        WITH BODY "a\r\n  b"\r\n',
        id="CRLF stays, strings are not touched",
    ),
    pytest.param("", "", id="nothing"),
    pytest.param("  text\n\n\n outside", "  text\n\n\n outside", id="text that is not ours"),
]


@pytest.mark.parametrize(("text", "expected"), LAYOUTS)
def test_layout(text: str, expected: str) -> None:
    assert laid_out(text) == expected
    assert laid_out(expected) == expected


def test_the_definition_that_pages_show_is_in_this_layout() -> None:
    (route,) = load_text(BASIC + 'WITH HEADERS ADD X-A "1" WITH BODY GET ENV "TENANT" + "x"').routes
    assert laid_out(route.definition + "\n") == route.definition + "\n"
