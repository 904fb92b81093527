"""Lists of synonyms: `synonyms.yaml` beside the templates of a library, and the list that ships with this package.

A list has one entry for each group of words that mean the same, `[relay, Relais, relé]` or `relay, Relais, relé`. Of
`a, b => c` only the left side is also searched as the right one. Reading continues after a bad entry. Blocks on files.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import yaml

from template_api.errors import SourceError
from template_api.records import SynonymRule
from template_api.sources.reading import file_text, noting, parsed_yaml

SYNONYMS_FILE = "synonyms.yaml"
_LARGEST = 1024 * 1024
_MOST_WORDS = 6  # of one phrase
_LONGEST = 100
_ARROW = "=>"
_FORM = "an entry is a list of words such as [relay, Relais], or a => b"


def read_synonyms(paths: Sequence[Path]) -> tuple[list[SynonymRule], list[SourceError]] | None:
    """Read the list of synonyms in each of some folders; None when none of them has one."""
    files = [path / SYNONYMS_FILE for path in paths if (path / SYNONYMS_FILE).exists()]
    rules: list[SynonymRule] = []
    faults: list[SourceError] = []
    for file in files:
        with noting(faults, str(file)):
            for entry in _entries(file, file_text(file.parent.resolve(), file, _LARGEST)):
                with noting(faults, f"{file}:{entry.start_mark.line + 1}"):
                    rules.append(_rule(entry))
    return (rules, faults) if files else None


@cache
def shipped_synonyms() -> Sequence[SynonymRule]:
    """Return the list that ships with this package; a tenth of a second, once."""
    file = Path(__file__).parents[1] / SYNONYMS_FILE
    return [_rule(entry) for entry in _entries(file, file.read_text("utf-8"))]


def _entries(file: Path, text: str) -> list[yaml.Node]:
    node, _ = parsed_yaml(file, text)
    if node is not None and not isinstance(node, yaml.SequenceNode):
        raise SourceError(f"{file}:{node.start_mark.line + 1}", f"must hold a list; {_FORM}")
    # An alias of an entry says nothing new: of many a file of 1 MiB would become a list of gigabytes.
    return list({id(entry): entry for entry in node.value}.values()) if node is not None else []


def _rule(item: yaml.Node) -> SynonymRule:
    if isinstance(item, yaml.ScalarNode):
        left, arrow, right = item.value.partition(_ARROW)
        words = _phrases(left.split(","))
        meant = _phrases(right.split(",")) if arrow else words
    elif isinstance(item, yaml.SequenceNode) and all(isinstance(each, yaml.ScalarNode) for each in item.value):
        meant = words = _phrases([each.value for each in item.value])
        arrow = ""
    else:
        raise ValueError(_FORM)
    if not arrow and len(words) < 2:
        raise ValueError(f"a group needs two words at least; {_FORM}")
    return SynonymRule(words, meant)


def _phrases(texts: Sequence[str]) -> tuple[str, ...]:
    phrases = tuple(text.strip() for text in texts)
    for phrase in phrases:
        is_short = len(phrase) <= _LONGEST and len(phrase.split()) <= _MOST_WORDS
        if not is_short or _ARROW in phrase or not any(map(str.isalnum, phrase)):
            raise ValueError(f"{phrase[:_LONGEST]!r} is not one to {_MOST_WORDS} words; {_FORM}")
    return phrases
