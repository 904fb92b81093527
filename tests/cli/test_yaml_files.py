"""What is wrong with a YAML file is said where the mistake is, in words that need no knowledge of YAML."""

import re
from pathlib import Path

import pytest

from amqtt_rest_bridge.cli.yaml_files import read_yaml
from amqtt_rest_bridge.errors import ConfigurationError

QUOTES = "; put the value in quotes"
NO_NAME = "a colon too many: the line is indented too far, the line before lacks a space behind its colon, or the value"
OTHER = "this line is not a name and a value, as in name: value"
MISTAKES = [
    ("no space behind a colon", "a:\n  b: 1\n  bind:1\nc: 1\n", f"3:3: {OTHER}"),
    ("no space in the first line", "routes:conf\ngroup: x\n", f"2:6: {NO_NAME}"),
    ("no space in a list", "a:\n  - b:1\n    c: 1\n", f"3:6: {NO_NAME}"),
    ("no colon", "a: 1\nb\nc: 1\n", f"2:1: {OTHER}"),
    ("equals sign", "a = 1\nb: 2\n", f"2:2: {NO_NAME}"),
    ("no name", ": 1\n", "1:1: a colon without a name before it"),
    ("two colons", "a: b: c\n", f"1:5: {NO_NAME}"),
    ("deeper", "a:\n  b: 1\n    c: 2\n", f"3:6: {NO_NAME}"),
    ("less deep", "a:\n    b: 1\n  c: 2\n", "3:3: this line begins in another column than its neighbours"),
    ("tab", "a:\n  b: 1\n\tc: 1\n", "3:1: a tab indents this line; YAML takes spaces only"),
    ("open quote", "a: 'b\nc: 1\n", "1:4: the quote that begins here is never closed"),
    ("another quote", "a: 'b\nc: 'd'\ne: 1\n", "2:5: a text follows the closing quote"),
    ("quote in quotes", "a: 'it's'\n", "1:8: a text follows the closing quote; inside of quotes write ''"),
    ("open brace", "a: {b: 1\nc: 2\n", "1:4: this { is not closed, or a comma between its values is missing"),
    ("open bracket", "a: [b, c\nd: 3\n", "1:4: this [ is not closed, or a comma between its values is missing"),
    ("open at the end", "a: b\ntests: {", "2:9: the file ends, and a { or [ in it is not closed"),
    ("closing bracket", "a: b\nc: ]\n", f"2:4: a bracket that was never opened{QUOTES}"),
    ("at sign", "a: @x\n", f"1:4: no value begins with this character{QUOTES}"),
    ("fence", "```yaml\na: b\n```\n", "1:1: delete the line: ``` belongs to Markdown"),
    ("fence below", "a: b\n```\n", "2:1: delete the line: ``` belongs to Markdown"),
    ("alias", "a: *x\n", f"1:4: a value with * at its beginning refers to another one in YAML{QUOTES}"),
    ("anchor", "a: &\n", f"1:4: * and & begin references in YAML{QUOTES}"),
    ("tag", "a: !x y\n", f"1:4: what begins with ! or = is not a text in YAML{QUOTES}"),
    ("block text", "a: |x\n", f"1:4: behind | or > a text begins on the next line{QUOTES}"),
    ("escape", 'a: "\\d"\n', r"1:6: no escape of double quotes; write \\ for a backslash"),
    ("two documents", "a: 1\n---\nb: 1\n", "2:1: --- begins a second document; the file can have one only"),
    ("template", "a: {{ x }}\n", f"1:5: braces begin a mapping in YAML{QUOTES}"),
    ("list behind a name", "a: - b\n", "1:4: a list begins on the line below its name"),
    ("list among names", "a: 1\n- b\n", "2:1: a list begins here, among names; indent it"),
    ("name in a list", "- a\nb: 1\n", "2:1: a name is here among the entries of a list; begin it with -"),
    ("merge", "a:\n  <<: 3\n", "2:7: << takes mappings only"),
    ("twice", "plugins: {a.B: {}, a.B: {}}\n", "1:20: a.B is given twice"),
    ("control character", "a: 1\nb: \x01\n", "2:4: a control character, U+0001"),
    ("no date", "a: 1\nb: 2026-13-45\n", "2:4: a value that cannot be read (month must be in 1..12)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), [pytest.param(text, said, id=name) for name, text, said in MISTAKES])
def test_a_mistake_is_named_at_its_place_in_plain_words(folder: Path, text: str, said: str) -> None:
    path = folder / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=f"^{re.escape(f'{path}:{said}')}"):
        read_yaml(path)
