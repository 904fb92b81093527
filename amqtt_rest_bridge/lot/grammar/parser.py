"""What the rules of `route_parser` run on: TatSu's parser without its memory. For any thread.

It replaces private parts of TatSu. The rules are not repeated here, but for what is skipped between tokens.
"""

import re
from contextlib import suppress
from typing import Any

from tatsu.ast import AST
from tatsu.buffering import Buffer
from tatsu.exceptions import FailedParse, OptionSucceeded
from tatsu.infos import ParseState

from amqtt_rest_bridge.lot.grammar.route_parser import COMMENTS, WHITESPACE, RouteParser

_LINE_COMMENT = r"(?:\/\/|--)[^\n]*"
_SKIPPED_COMMENT = r"(?<!\S)\/\*[\s\S]*?\*\/|"  # of the rule SKIPPED
_SKIPPED_REST = r"(?>(?:[^\n]+|\n(?![^\S\n]*(?i:DEFINE)(?![\w-])))*)"


class _NoMatchError(FailedParse):  # type: ignore[misc]
    """A rule, token or pattern does not match. TatSu's own errors copy the stack of rules for a message."""

    __init__ = Exception.__init__


class Parser(RouteParser):
    """TatSu's parser (5.14 to 5.15) without what takes it half of its time and no rule needs.

    That is its memory of what it has tried (only faults are tried twice in one place), left recursion, traces and
    messages, and two generators for each option.
    """

    def _call(self, ruleinfo: Any) -> Any:
        tokenizer, name = self._tokenizer, ruleinfo.name
        begin = tokenizer.pos
        if not name[0].isupper():
            tokenizer.next_token()
        first, self._last_node = tokenizer.pos, None
        state = ParseState(ast=AST(), pos=first)
        self._statestack.append(state)
        try:
            ruleinfo.impl(self)
            node = self._get_node(first, ruleinfo)
            action = getattr(self._semantics, name, None)
            if action is not None:
                node = action(node)
        except FailedParse:
            tokenizer.goto(begin)
            raise
        finally:
            self._statestack.pop()
        self._append_cst(node)
        return node

    def _choice(self) -> suppress:
        self._last_node = None
        return suppress(OptionSucceeded)

    def _error(self, item: Any, exclass: Any = None) -> None:  # noqa: ARG002  # TatSu's signature
        raise _NoMatchError

    def _option(self) -> "_Option":
        return _Option(self)


class _Option:
    """An alternative of a choice: what it has read is kept, and the choice ended, when it fits."""

    __slots__ = ("_parser",)

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def __enter__(self) -> None:
        self._parser._last_node = None
        self._parser._cut_stack.append(False)
        self._parser._push_ast(copyast=bool(self._parser.ast))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        is_cut = self._parser._cut_stack.pop()
        if kind is None:
            self._parser._merge_ast()
            raise OptionSucceeded
        self._parser._pop_ast()
        return not is_cut and issubclass(kind, FailedParse)


class Text(Buffer):  # type: ignore[misc]
    """Skips white space and comments with one expression: TatSu's own three take a third of all time.

    It has no table of lines, which in TatSu has an entry for each character: `Report` counts lines, for faults only.
    """

    _skipped = re.compile(f"(?>(?:{WHITESPACE}|{COMMENTS})+)")
    _skipped_behind = re.compile(rf"(?>(?:{WHITESPACE}|{_LINE_COMMENT})+)")

    def __init__(self, text: str, **settings: Any) -> None:
        self._pos: int
        self.text: str
        super().__init__(text, **settings)
        self._comments_end = self.text.rfind("*/") + 2 if "*/" in self.text else 0

    def next_token(self) -> None:
        """Go to the next token."""
        # Behind the last */ no block comment is looked for: each that is never closed would be followed to the end.
        skipped = self._skipped if self._pos < self._comments_end else self._skipped_behind
        found = skipped.match(self.text, self._pos)
        if found is not None:
            self._pos = found.end()

    def _scanre(self, pattern: Any) -> Any:
        if not (isinstance(pattern, str) and _SKIPPED_COMMENT in pattern):
            return super()._scanre(pattern)
        begin, found = self._pos, None
        if begin < self._comments_end:
            found = re.compile(pattern).match(self.text, begin, self._comments_end)
            if found is not None and found.end() < self._comments_end:
                return found
        read = 0 if found is None else found.end() - begin
        return re.compile(rf"[\s\S]{{{read}}}{_SKIPPED_REST}").match(self.text, begin)

    def stop(self) -> None:
        """End the text here."""
        self.text = self.text[: self._pos]
        self._len = len(self.text)

    def posline(self, pos: int | None = None) -> int:  # noqa: ARG002  # TatSu's signature
        """Return no number of a line."""
        return 0

    def _postprocess(self) -> None:
        self._len = len(self.text)
