"""The reference's tables of settings, placeholders and codes, made from the tables that the code works with.

    python -m tests.documents.tables

writes them into the pages of the reference, and the grammar for editors; tests compare them.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from amqtt_rest_bridge.catalogue import ANSWERS, FAILURES, AnswerRow, FailureRow
from amqtt_rest_bridge.errors import FaultCode
from amqtt_rest_bridge.lot.placeholders.kinds import PLACEHOLDERS, Mode
from amqtt_rest_bridge.lot.settings_table import PARAMETERS as SETTINGS
from amqtt_rest_bridge.lot.settings_table import Applies, BlockKind, Parameter
from amqtt_rest_bridge.settings import Settings, WorkerSettings, row_of
from amqtt_rest_bridge.sizes import size_text
from template_api import cli, config, query
from tests.documents import textmate
from tests.support.documents import ROOT

_MODES = {Applies.CLIENT: "client", Applies.SERVER: "server", Applies.BOTH: "both"}


def setting_table(kind: BlockKind) -> str:
    """Make the table of a block's settings; *ext* marks what goes beyond the plain language."""
    rows = (
        (_name(row), row.allowed, _default(row), _MODES[row.applies], meaning, f"`{row.example}`")
        for row in SETTINGS[kind].values()
        for meaning in ("; ".join([row.meaning, *(f"{choice}: {what}" for choice, what in row.choices.items())]),)
    )
    return _table(("Setting", "Value", "Default", "Mode", "Meaning", "Example"), rows)


def plugin_table(settings: type[Settings], beside: type[Settings] | None = None) -> str:
    """Make the table of the plugin's or a worker's settings, without those that are beside it already."""
    known = {one.name for one in dataclasses.fields(beside)} if beside is not None else set()
    rows = (
        (f"`{one.name}`", _written(one), row.meaning, f"`{row.example}`")
        for one in dataclasses.fields(settings)
        if one.name not in known
        for row in (row_of(one),)
    )
    return _table(("setting", "default", "meaning", "example"), rows)


def _written(setting: "dataclasses.Field[Any]") -> str:
    if row_of(setting).is_required:
        return "required"
    if setting.default is None:
        return "null"
    if isinstance(setting.default, int) and setting.name.endswith("_bytes"):
        return f"`{size_text(setting.default).replace(' ', '')}`"
    return f"`{setting.default}`" if isinstance(setting.default, str) else str(setting.default)


def api_table() -> str:
    """Make the table of the template API's settings."""
    options = {option.name: option for option in cli._application().commands["serve"].params}
    rows = (
        (
            f"`{one.name}`", f"`--{'no-' if one.default is True else ''}{one.name.replace('_', '-')}`",
            f"`{options[one.name].envvar}`", "none" if one.default is None else f"`{str(one.default).lower()}`",
            options[one.name].help,
        )
        for one in dataclasses.fields(config.Settings)
    )  # fmt: skip
    return _table(("plugin setting", "option of `serve`", "environment variable", "default", "meaning"), rows)


def parameter_table() -> str:
    """Make the table of the parameters of searches, beside their text."""
    parameters = query.resolved(query.description()["paths"][query.SEARCH_PATH]["get"]["parameters"])
    names = f"some of {', '.join(query.description()['components']['schemas']['ResultField']['enum'])}"
    rows = (
        (
            f"`{each['name']}`",
            schema["x-allowed"].replace(names, "names of members"),
            _shown(schema.get("default")),
            each["description"],
        )
        for each in parameters
        if each["in"] == "query" and each["name"] != "q"
        for schema in (each["schema"],)
    )
    return _table(("parameter", "value", "default", "meaning"), rows)


def _shown(value: object) -> str:
    return "" if value is None else f"`{json.dumps(value)}`" if isinstance(value, bool) else f"`{value}`"


def placeholder_table() -> str:
    """Make the table of placeholders."""
    rows = (
        (", ".join(f"`{written}`" for written in kind.written), _modes(kind.modes), kind.meaning)
        for kind in PLACEHOLDERS
    )
    return _table(("Placeholder", "Mode", "Replaced by"), rows)


def failure_table() -> str:
    """Make the table of client mode's codes."""
    return _table(
        ("code", "cause", "what to do"), ((_anchored(row), row.meaning, row.hint) for row in FAILURES.values())
    )


def answer_table() -> str:
    """Make the table of error answers; each answer has its own hint."""
    rows = ((row.status[:3], _anchored(row), row.meaning) for row in ANSWERS.values())
    return _table(("status", "`error.code`", "when"), rows)


def fault_table() -> str:
    """Make the table of the codes of faults."""
    return _table(("code", "when"), ((f'<a id="{code}"></a>`{code}`', code.meaning) for code in FaultCode))


def _anchored(row: FailureRow | AnswerRow) -> str:
    return f'<a id="{row.anchor}"></a>`{row.code}`'


def _modes(modes: tuple[Mode, ...]) -> str:
    if modes == (Mode.BATCH,):
        return "client, with BATCH_SIZE"
    if modes == (Mode.RESULT,):
        return "client: PAYLOAD, DESTINATION_TOPIC"
    return " and ".join(mode for mode in modes if mode not in (Mode.RESULT, Mode.BATCH))


def _name(row: Parameter) -> str:
    return f"`{row.name}`" if row.portable else f"`{row.name}` *ext*"


def _default(row: Parameter) -> str:
    return f"`{row.default}`" if row.default is not None else ""


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def made() -> Iterator[tuple[str, str, str]]:
    """Yield page, heading and text of each part that is made from the code."""
    for kind in BlockKind:
        yield "amqtt_rest_bridge/lot/README.md", f"`{kind}`", setting_table(kind)
    yield "amqtt_rest_bridge/README.md", "Configuration", plugin_table(Settings)
    yield "amqtt_rest_bridge/group/README.md", "Settings", plugin_table(WorkerSettings, Settings)
    yield "template_api/README.md", "Settings", api_table()
    yield "template_api/README.md", "Parameters", parameter_table()
    yield "amqtt_rest_bridge/lot/placeholders/README.md", "Names", placeholder_table()
    yield "amqtt_rest_bridge/engine/README.md", "Failure codes", failure_table()
    yield "amqtt_rest_bridge/engine/server/README.md", "Answers", answer_table()
    yield "amqtt_rest_bridge/lot/README.md", "Codes of faults", fault_table()


def main() -> None:
    """Put each part in the place of the one that begins like it, below its heading."""
    textmate.FILE.write_text(textmate.written(), encoding="utf-8")
    for name, heading, text in made():
        file = ROOT / name
        before, title, rest = file.read_text(encoding="utf-8").partition(f" {heading}\n")
        first = re.escape(text.partition("\n")[0])
        part = re.search(rf"^{first}\n(\|.*\n)+", rest, re.MULTILINE)
        if part is None:
            raise SystemExit(f"{name}: {heading!r} has no part that begins with {text.partition(chr(10))[0]!r}")
        file.write_text(before + title + rest[: part.start()] + text + rest[part.end() :], encoding="utf-8")


if __name__ == "__main__":
    main()
