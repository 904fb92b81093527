"""The TextMate grammar of route files, for editors: made from the table of settings and of placeholders.

    python -m tests.documents.textmate

writes it; a test compares the file with what the tables give.
"""

import json
from typing import Any

from amqtt_rest_bridge.lot.placeholders.kinds import PLACEHOLDERS
from amqtt_rest_bridge.lot.settings_table import IGNORED_BLOCK, PARAMETERS, BlockKind
from tests.support.documents import ROOT

FILE = ROOT / "conf/editors/lot.tmLanguage.json"
_AFTER = r"(?=\s|//|/\*|--|$)"


def grammar() -> dict[str, Any]:
    """Return the grammar: comments, definitions, blocks, settings, headers, values, and placeholders in strings."""
    return {
        "$schema": "https://raw.githubusercontent.com/martinring/tmlanguage/master/tmlanguage.json",
        "name": "Routes",
        "scopeName": "source.lot",
        "fileTypes": ["lot"],
        "patterns": [{"include": f"#{name}"} for name in ("comments", "statements", "values")],
        "repository": {
            "comments": {
                "patterns": [
                    {"name": "comment.line.lot", "match": r"(?://|--).*$"},
                    {"name": "comment.block.lot", "begin": r"/\*", "end": r"\*/"},
                ]
            },
            "statements": {"patterns": [_definition(), *_blocks(), *_settings(), _header()]},
            "values": {"patterns": [_get(), *_strings(), *_words()]},
            "placeholders": {"patterns": _placeholders()},
        },
    }


def _any(names: list[str]) -> str:
    return "|".join(sorted({name.replace(".", r"\.") for name in names}, key=lambda name: (-len(name), name)))


def _scopes(*names: str) -> dict[str, dict[str, str]]:
    return {str(number): {"name": f"{name}.lot"} for number, name in enumerate(names, start=1) if name}


def _definition() -> dict[str, Any]:
    return {
        "match": rf"(?i)\b(DEFINE)\s+(ROUTE)\s+([A-Za-z0-9_.-]+)\s+(WITH\s+TYPE)\s+[\"']?(REST_API)[\"']?{_AFTER}",
        "captures": _scopes(
            "keyword.control", "storage.type", "entity.name.type", "keyword.control", "support.type"
        ),
    }  # fmt: skip


def _blocks() -> list[dict[str, Any]]:
    blocks = _any([kind for kind in BlockKind if kind is not BlockKind.EVENT] + [IGNORED_BLOCK])
    return [
        {
            "match": rf"(?i)\b(ADD)\s+(EVENT)\s+([A-Za-z0-9_.-]+){_AFTER}",
            "captures": _scopes("keyword.control", "storage.type", "entity.name.function"),
        },
        {
            "match": rf"(?i)\b(ADD)\s+({blocks}){_AFTER}",
            "captures": _scopes("keyword.control", "storage.type"),
        },
    ]


def _settings() -> list[dict[str, Any]]:
    known = _any([name for rows in PARAMETERS.values() for name in rows])
    return [
        {
            "match": rf"(?i)\b(WITH)\s+({known}){_AFTER}",
            "captures": _scopes("keyword.control", "support.variable"),
        },
        {"match": r"(?i)\b(WITH)\s+([\w-]+)", "captures": _scopes("keyword.control", "invalid.illegal")},
    ]


def _header() -> dict[str, Any]:
    name = r"\"[^\"\n]*\"|'[^'\n]*'|[\w!#$%&*+.^`|~-]+"
    return {"match": rf"(?i)\b(ADD)\s+({name})", "captures": _scopes("keyword.control", "entity.other.attribute-name")}


def _get() -> dict[str, Any]:
    return {
        "match": r"(?i)\b(GET)\s+(ENV|SECRET)\s+(\"[^\"\n]*\"|'[^'\n]*'|[\w.-]+)",
        "captures": _scopes("keyword.operator", "support.function", "variable.other.constant"),
    }


def _strings() -> list[dict[str, Any]]:
    inside = [{"name": "constant.character.escape.lot", "match": r"\\[\"'\\nt]"}, {"include": "#placeholders"}]
    return [
        {"name": f"string.quoted.{kind}.lot", "begin": quote, "end": quote, "patterns": inside}
        for kind, quote in (("double", '"'), ("single", "'"))
    ]


def _words() -> list[dict[str, Any]]:
    return [
        {"name": "constant.language.lot", "match": r"(?i)\b(?:true|false)\b"},
        {"name": "constant.numeric.lot", "match": r"(?i)\b[0-9]+(?:\s+(?:SECOND|MINUTE|HOUR|DAY)S?)?\b"},
        {"name": "keyword.operator.lot", "match": r"\+"},
    ]


def _placeholders() -> list[dict[str, Any]]:
    names = _any([name for kind in PLACEHOLDERS for name in kind.names])
    match = rf"\{{(?:{names}|env|secret)(?:\.[^{{}}|\"'\s]+)?(?:\|[^{{}}\n]*)?\}}"
    return [{"name": "variable.parameter.lot", "match": match}]


def written() -> str:
    """Return the text of the file."""
    return json.dumps(grammar(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(written(), encoding="utf-8")
