"""Commands with what a broker has: definitions are parsed in a process of their own, and survive a restart."""

import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.route_text import load_text
from tests.tools.commands.tools import Tool, definition, serving


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for a process that starts on a busy machine."""
    monkeypatch.setattr("amqtt_rest_bridge.reload._TRIAL_SECONDS", 50)


def test_routes_that_were_added_are_there_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as host, closing(Tool(host)) as tool:
        tool.add("Kept")
    with serving(tmp_path) as host, closing(Tool(host)) as tool:
        assert tool.routes() == ["FromFile", "Kept"]
        tool.remove("Kept")


def test_the_loop_is_free_while_a_hostile_text_is_parsed(tmp_path: Path) -> None:
    async def processor_time() -> float:
        return time.thread_time()

    with serving(tmp_path) as host, closing(Tool(host)) as tool:
        text = definition("Hostile") + " WITH NONSENSE 1" * 10_000
        began = time.thread_time()
        load_text(text)
        parsing = time.thread_time() - began
        loop = host.wait(processor_time())
        assert tool.command(f"-addRoute {text}").startswith("Parsing error: ")
        assert host.wait(processor_time()) - loop < parsing / 4
        tool.add("Hostile")
