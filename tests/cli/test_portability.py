"""What `rest-bridge check --portable` warns of: what Coreflux's parser refuses."""

import pytest

from amqtt_rest_bridge.cli.portability import portability_warnings
from amqtt_rest_bridge.errors import FaultCode, Severity
from amqtt_rest_bridge.lot.sources import Source
from tests.support.route_text import BASIC, marked

HEADERS = '        WITH HEADERS\n            ADD X-Key GET ENV "KEY"\n'


def warnings(text: str) -> list[tuple[str, str]]:
    source = Source("a.lot", text)
    found = portability_warnings(source)
    assert {(one.code, one.severity) for one in found} <= {(FaultCode.NOT_PORTABLE, Severity.WARNING)}
    return [(marked(source, one), one.message) for one in found]


def test_a_route_in_the_canonical_layout_is_portable() -> None:
    header = '            ADD Trace_Config "x"\n'  # its name is its author's
    assert warnings(f"// A route.\n{BASIC}{HEADERS}{header}") == []


def test_definitions_of_other_types_are_not_looked_at() -> None:
    assert warnings("define MODEL x\n\tadd y\n") == []


@pytest.mark.parametrize(
    ("before", "after", "warning"),
    [
        pytest.param("DEFINE", "Define", ("Define", "Define is not in capitals"), id="define"),
        pytest.param("WITH TYPE", "WITH type", ("type", "type is not in capitals"), id="type"),
        pytest.param("ADD EVENT", "ADD Event", ("Event", "Event is not in capitals"), id="block"),
        pytest.param("        WITH METHOD", "        with METHOD", ("with", "with is not in capitals"), id="with"),
        pytest.param("METHOD", "Method", ("Method", "Method is not in capitals"), id="setting"),
        pytest.param("WITH HEADERS", "WITH headers", ("headers", "headers is not in capitals"), id="headers"),
        pytest.param("GET ENV", "GET env", ("env", "env is not in capitals"), id="get"),
        pytest.param(
            "        WITH METHOD", "\tWITH METHOD",
            ('WITH METHOD "POST"', "a tab in the indentation is not portable"), id="tab",
        ),
        pytest.param(
            "        WITH METHOD", "      WITH METHOD",
            ('WITH METHOD "POST"', "an indentation of 6 spaces is not portable here"), id="indentation",
        ),
        pytest.param(
            "            ADD X", "        ADD X",
            ('ADD X-Key GET ENV "KEY"', "an indentation of 8 spaces is not portable here"), id="header",
        ),
        pytest.param(
            "\n        WITH METHOD", " WITH METHOD",
            ('WITH METHOD "POST"', "a statement behind another one in its line is not portable"), id="one line",
        ),
        pytest.param("WITH ENDPOINT", "WITH RETAIN", ("RETAIN", "RETAIN is not portable"), id="ext"),
        pytest.param(
            "    ADD EVENT", "    ADD ROUTE_CONFIG\n    ADD EVENT",
            ("ADD ROUTE_CONFIG", "ROUTE_CONFIG is not portable"), id="block ext",
        ),
    ],
)  # fmt: skip
def test_what_is_not_portable_is_warned_of_once_at_its_place(before: str, after: str, warning: tuple[str, str]) -> None:
    assert warnings((BASIC + HEADERS).replace(before, after, 1)) == [warning]
