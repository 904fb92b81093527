"""What both command lines do where a user or a shell gives them what they cannot use: a clear line, no trace."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import template_api.cli
from amqtt_rest_bridge import __main__ as rest_bridge

DEMO = Path(__file__).parent.parent / "conf" / "routes" / "demo.lot"
BRIDGE, API = rest_bridge.main, template_api.cli.main


@pytest.mark.parametrize(
    ("main", "arguments", "said"),
    [
        pytest.param(BRIDGE, "check --format xml .", "'--format': 'xml' is not one of 'text', 'json',", id="choice"),
        pytest.param(BRIDGE, "check --format sariff .", "'github'. Did you mean 'sarif'?", id="misspelt choice"),
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


@pytest.mark.parametrize(
    ("main", "headings"),
    [
        pytest.param(BRIDGE, ["Write and test routes", "Look at a running bridge", "Mend what failed"], id="bridge"),
        pytest.param(API, ["Commands"], id="API"),
    ],
)
def test_without_a_command_the_help_is_printed(
    main: Callable[[list[str]], int], headings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 2
    printed = capsys.readouterr().err
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.strip() == printed.strip()
    places = [printed.index(f"\n{heading}:\n") for heading in headings]
    assert places == sorted(places)


OUTPUTS = [
    pytest.param(BRIDGE, ["check", str(DEMO)], 2, id="check"),
    pytest.param(BRIDGE, ["check", "--json", str(DEMO)], 2, id="check --json"),
    pytest.param(BRIDGE, ["help", "METHOD"], 2, id="help"),
    pytest.param(BRIDGE, ["try", "--help"], 2, id="--help"),
    pytest.param(BRIDGE, ["--version"], 2, id="--version"),
    pytest.param(API, ["import", "--help"], 1, id="--help of the API"),
    pytest.param(API, ["--version"], 1, id="--version of the API"),
]


@pytest.mark.parametrize(("main", "arguments", "exit_status"), OUTPUTS)
def test_an_output_that_is_full_gone_or_closed_is_said_in_a_line_at_most(
    main: Callable[[list[str]], int],
    arguments: list[str],
    exit_status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(arguments) == exit_status
    assert capsys.readouterr().err.endswith(": cannot write to standard output: No space left on device\n")

    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "w") as gone:  # typer leaves the rest in its buffer
        monkeypatch.setattr(sys, "stdout", gone)
        assert main(arguments) == 1
    monkeypatch.setattr(sys, "stdout", None)
    assert main(arguments) == 0
    sys.stdout.close()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "exit_status", "said"),
    [
        pytest.param("serve --check -c /dev/zero", 1, "cannot read /dev/zero: it is larger than 1 MiB", id="broker"),
        pytest.param("worker --check -c /dev/zero", 1, "cannot read /dev/zero: it is larger than 1 MiB", id="worker"),
        pytest.param("test zero.test.yaml", 2, "cannot read zero.test.yaml: it is larger than 1 MiB", id="test"),
        pytest.param(
            "try x.lot --topic a --payload-file /dev/zero", 2, "/dev/zero: it is larger than 16 MiB", id="try"
        ),
    ],
)
def test_a_file_without_end_is_refused(
    arguments: str,
    exit_status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("zero.test.yaml").write_bytes(bytes((1 << 20) + 1))
    assert BRIDGE(arguments.split()) == exit_status
    output = capfd.readouterr()
    assert f"{output.out}{output.err}".endswith(f"{said}\n")


def test_control_c_while_a_command_is_imported_is_exit_status_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rest_bridge, "import_module", interrupted)
    assert BRIDGE(["status"]) == 130
    assert BRIDGE(["check", str(DEMO)]) == 130
    assert capsys.readouterr() == ("", "")


INTERRUPTED = """
import importlib.abc, os, signal, sys

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            sys.argv[1] = "interrupted"
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from {module} import main
status = main({arguments})
sys.exit(status if sys.argv[1] == "interrupted" else "it does not import that")
"""


@pytest.mark.parametrize(
    ("module", "arguments", "imported"),
    [
        pytest.param("amqtt_rest_bridge.__main__", ["check", "."], "typer", id="typer"),
        pytest.param("amqtt_rest_bridge.__main__", ["check", "."], "amqtt_rest_bridge.cli", id="commands"),
        pytest.param("amqtt_rest_bridge.__main__", ["check", "."], "amqtt_rest_bridge.errors", id="last of them"),
        pytest.param("amqtt_rest_bridge.__main__", ["check", "."], "amqtt_rest_bridge.lot", id="a command's"),
        pytest.param("amqtt_rest_bridge.__main__", ["status"], "amqtt_rest_bridge.cli.status", id="a command"),
        pytest.param("template_api.cli", ["list"], "typer", id="typer of the API"),
        pytest.param("template_api.cli", ["list"], "template_api.config", id="settings of the API"),
        pytest.param("template_api.cli", ["list"], "template_api.library", id="a command's of the API"),
    ],
)
def test_control_c_during_any_import_leaves_no_trace(
    module: str, arguments: list[str], imported: str, tmp_path: Path
) -> None:
    program = INTERRUPTED.format(module=module, arguments=arguments)
    command = [sys.executable, "-c", program, imported]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr in ("", "template-api: interrupted\n")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_what_the_outputs_encoding_lacks_is_written_with_backslashes(
    errors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("a.lot").write_text("DEFINE ROUTE A WITH TYPE REST_API\n    ADD EVENT Ü\n", encoding="utf-8")
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", errors=errors))
    assert BRIDGE(["check", str(tmp_path)]) == 1
    assert rb"the event name \xdc holds other characters" in written.getvalue()
