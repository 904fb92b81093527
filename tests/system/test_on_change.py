"""ON_CHANGE: which settings are warned of, a test file, how workers share the topics, and a running bridge."""

from pathlib import Path

import pytest

from amqtt_rest_bridge.__main__ import main
from amqtt_rest_bridge.group.slots import plan_sessions
from tests.support.route_text import load_text, messages

CHANGES = 'WITH ON_CHANGE "{payload}"'
ROUTE = """DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "%s" WITH ENABLE_CLIENT "true"
    ADD EVENT E WITH SOURCE_TOPIC "in/#" WITH METHOD "POST" WITH ENDPOINT "/" WITH BODY '"{topic}"'
        WITH DESTINATION_TOPIC "out" """


def test_a_text_without_placeholders_and_a_time_without_a_text_are_warned_of() -> None:
    event = """DEFINE ROUTE R WITH TYPE REST_API
    ADD REST_API_CONFIG WITH BASE_ADDRESS "http://localhost" WITH ENABLE_CLIENT "true"
    ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/" """
    (constant,) = messages(event + 'WITH ON_CHANGE "state"')
    assert "warning: ON_CHANGE has no placeholder: only the first message of each topic is sent" in constant
    (lone,) = messages(event + 'WITH ON_CHANGE_FOR "1h"')
    assert "warning: ON_CHANGE_FOR has no effect without ON_CHANGE" in lone
    (levels,) = messages(event + 'WITH ON_CHANGE "{topic.2}"')
    assert "error: ON_CHANGE uses {topic.2}" in levels


def test_a_test_file_has_a_message_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.lot").write_text(f"""DEFINE ROUTE R WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "http://h" WITH ENABLE_CLIENT "true"
        ADD EVENT E WITH SOURCE_TOPIC "in" WITH METHOD "GET" WITH ENDPOINT "/" {CHANGES}""")
    (tmp_path / "r.test.yaml").write_text("""tests:
        - {message: {topic: in, payload: 1}, twice: true, sends: [{url: "http://h/"}], skipped: true}""")
    assert main(["test", str(tmp_path)]) == 0
    assert "1 passed, 0 failed" in capsys.readouterr().out


def test_the_slots_of_workers_share_the_topics_of_such_an_event() -> None:
    (session,) = plan_sessions(load_text(ROUTE % "http://h" + CHANGES).routes, "plant").sessions.values()
    assert [(feed.topic_filter, feed.by_slot) for feed in session.feeds] == [("in/#", True)]
