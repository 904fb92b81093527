"""Commands with what a broker has: definitions are parsed in a process of their own, and survive a restart."""

import time
from pathlib import Path

import pytest

from tests.support.route_text import load_text
from tests.tools.commands.tools import Tool, definition, serving


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for a process that starts on a busy machine."""
    monkeypatch.setattr("amqtt_rest_bridge.reload._TRIAL_SECONDS", 50)


def test_routes_that_were_added_are_there_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as host:
        tool = Tool(host)
        assert tool.command(f"-addRoute {definition('Kept')}") == "Route 'Kept' added successfully."
        tool.close()
    with serving(tmp_path) as host:
        tool = Tool(host)
        assert [row["name"] for row in tool.call("-listRoutes")["data"]] == ["FromFile", "Kept"]
        assert tool.command("-removeRoute Kept") == "Route 'Kept' removed successfully."
        tool.close()


def test_the_loop_is_free_while_a_hostile_text_is_parsed(tmp_path: Path) -> None:
    with serving(tmp_path) as host:  # which parses in a process of its own
        tool = Tool(host)
        text = definition("Hostile") + " WITH NONSENSE 1" * 10_000
        began = time.thread_time()
        load_text(text)
        parsing = time.thread_time() - began
        loop = host.wait(_processor_time())
        assert tool.command(f"-addRoute {text}").startswith("Parsing error: ")
        assert host.wait(_processor_time()) - loop < parsing / 4
        assert tool.command(f"-addRoute {definition('Hostile')}") == "Route 'Hostile' added successfully."
        assert tool.command("-removeRoute Hostile") == "Route 'Hostile' removed successfully."
        tool.close()


async def _processor_time() -> float:
    """Return the processor time of the loop's thread, in seconds."""
    return time.thread_time()
