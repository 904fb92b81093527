"""What both command lines do where a user or a shell gives them what they cannot use: a clear line, no trace."""

from collections.abc import Callable

import pytest

import template_api.cli
from amqtt_rest_bridge import __main__ as rest_bridge

BRIDGE, API = rest_bridge.main, template_api.cli.main


@pytest.mark.parametrize(
    ("main", "arguments", "said"),
    [
        pytest.param(BRIDGE, "check --format xml .", "'--format': 'xml' is not one of 'text', 'json',", id="choice"),
        pytest.param(BRIDGE, "replay --from x --seconds a", "'--seconds': it must be a valid number", id="number"),
        pytest.param(BRIDGE, "replay --from x --seconds 0", "it must be greater than or equal to 0.1", id="too small"),
        pytest.param(BRIDGE, "check --nonsense .", "No such option: --nonsense", id="option"),
        pytest.param(BRIDGE, "chek .", "No such command 'chek'", id="command"),
        pytest.param(API, "serve --threads x", "'--threads': it must be a valid integer", id="integer of the API"),
        pytest.param(API, "list --status x", "'x' is not one of 'published', 'draft'", id="choice of the API"),
    ],
)
def test_wrong_arguments_are_named_with_what_may_be_written(
    main: Callable[[list[str]], int], arguments: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    output = capsys.readouterr()
    assert said in output.err and "--help' for help" in output.err and "Value error" not in output.err
    assert output.out == ""
