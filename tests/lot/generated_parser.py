"""Makes the parser of the route language of its grammar: `python -m tests.lot.generated_parser` after a change.

The parser is part of the package, as generating it takes 0.6 s of processor time, which each first use would pay.
"""

import re
from pathlib import Path

import amqtt_rest_bridge.lot.grammar

FOLDER = Path(amqtt_rest_bridge.lot.grammar.__file__).parent
GRAMMAR = FOLDER / "route.tatsu"
PARSER = FOLDER / "route_parser.py"
HEAD = '''\
# ruff: noqa
# mypy: ignore-errors
"""The parser of the route language, made by TatSu of `route.tatsu`: `python -m tests.lot.generated_parser`."""

from tatsu.infos import RuleInfo
from tatsu.parsing import Parser

WHITESPACE = {whitespace!r}
COMMENTS = {comments!r}
DIRECTIVES = {{
    "whitespace": WHITESPACE,
    "ignorecase": {ignorecase!r},
    "namechars": {namechars!r},
    "nameguard": True,
    "left_recursion": {left_recursion!r},
    "parseinfo": {parseinfo!r},
}}


def rule(impl):
    info = RuleInfo(impl.__name__[1:-1], impl, False, True, False, (), {{}})
    return lambda self: self._call(info)


class RouteParser(Parser):
'''


def generated() -> str:
    """Return the text of the parser's module: the rules as TatSu writes them, and the directives of the grammar.

    The rest of what TatSu writes differs between its versions, the rules do not. What was expected where no option
    fits is left out: it is shown nowhere. So is None for names that a rule has not read, which `AST` returns for any.
    What describes a rule is made once, which TatSu does at each call.
    """
    import tatsu

    text = GRAMMAR.read_text(encoding="utf-8")
    directives = dict(tatsu.compile(text).directives)
    directives["comments"] = f"{directives['comments']}|{directives['eol_comments']}"
    code: str = tatsu.to_python_sourcecode(text)
    rules = code[code.index("    @tatsumasu()") : code.index("\ndef main(")]
    rules = re.sub(r"self\._error\(\n\s+'expecting one of: '\n(?:.*\n)*?\s+\)(?=\n)", "self._fail()", rules.rstrip())
    rules = re.sub(r"\n +self\._define\(.*\)(?=\n|\Z)", "", rules)
    return HEAD.format(**directives) + rules.replace("@tatsumasu()", "@rule") + "\n"


if __name__ == "__main__":
    PARSER.write_text(generated(), encoding="utf-8")
