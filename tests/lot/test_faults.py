"""What programs read of a fault: its code, its end and its replacement; `test_cases.py` has it of every case."""

from pathlib import Path

import pytest

from amqtt_rest_bridge.errors import FaultCode
from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.loader import load
from amqtt_rest_bridge.lot.sources import Source
from tests.support.route_text import marked


@pytest.mark.parametrize(
    ("line", "text", "code"),
    [
        pytest.param('WITH REQUEST_TIMOUT "3"', "REQUEST_TIMOUT", FaultCode.UNKNOWN_SETTING, id="name"),
        pytest.param('WITH ENABLE_CLIENT "yes" // no', '"yes"', FaultCode.INVALID_VALUE, id="string"),
        pytest.param("WITH SERVER_PORT 80a", "80a", FaultCode.INVALID_VALUE, id="word"),
        pytest.param('WITH USERNAME GET ENV "NONE" + "b"', 'GET ENV "NONE"', FaultCode.UNAVAILABLE, id="get"),
        pytest.param('WITH SERVER_PORT "8" + "0a"', '"8" + "0a"', FaultCode.INVALID_VALUE, id="whole value"),
        pytest.param('WITH USE_SSL "a"\n"b"', '"b"', FaultCode.UNEXPECTED_TEXT, id="rest"),
        pytest.param("WITH BASE_ADDRESS // none", "WITH BASE_ADDRESS", FaultCode.MISSING, id="statement"),
    ],
)
def test_a_fault_ends_where_what_is_wrong_does(line: str, text: str, code: FaultCode) -> None:
    source = Source("a.lot", f"DEFINE ROUTE A WITH TYPE REST_API\n  ADD REST_API_CONFIG\n    {line}\n")
    faults = [fault for fault in load([source], Environment({}, Path())).faults if fault.code is code]
    assert [marked(source, fault) for fault in faults] == [text]


def event(text: str, config: str = 'WITH ENABLE_SERVER "true"') -> Source:
    return Source("a.lot", f"DEFINE ROUTE A WITH TYPE REST_API\n ADD REST_API_CONFIG {config}\n ADD EVENT E {text}\n")


def test_a_did_you_mean_about_what_the_environment_holds_replaces_nothing() -> None:
    source = event('WITH METHOD GET ENV "VERB" WITH ENDPOINT "/a" WITH DESTINATION_TOPIC "a"')
    (fault,) = load([source], Environment({"VERB": "PSOT"}, Path())).faults
    assert fault.hint is not None
    assert fault.replacement is None


def test_the_default_of_a_misspelt_placeholder_stays() -> None:
    source = event(
        'WITH METHOD "POST" WITH ENDPOINT "/a" WITH SOURCE_TOPIC "a" WITH BODY \'{value.jsn.level|3}\'',
        'WITH ENABLE_CLIENT "true" WITH BASE_ADDRESS "http://localhost"',
    )
    (fault,) = load([source], Environment({}, Path())).faults
    assert marked(source, fault) == "{value.jsn.level|3}"
    assert fault.replacement == "{value.json.level|3}"


def test_what_is_wrong_twice_in_a_value_is_marked_twice() -> None:
    source = event('WITH METHOD "POST" WITH ENDPOINT "/:id/x/:id" WITH DESTINATION_TOPIC "a"')
    faults = load([source], Environment({}, Path())).faults
    assert [fault.position.column for fault in faults] == [49, 55]


def test_a_fault_marks_at_most_1000_characters_of_a_line_of_statements() -> None:
    text = "DEFINE ROUTE A WITH TYPE REST_API ADD REST_API_CONFIG" + " WITH RETRIES 1" * 300
    faults = load([Source("a.lot", text)], Environment({}, Path())).faults
    assert max(fault.end.column - fault.position.column for fault in faults) == 1000
