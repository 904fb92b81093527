"""What the rules of `route_parser` run on: TatSu's parser without what they do not need. For any thread.

It replaces private parts of TatSu. The rules are not repeated here, but for what is skipped between tokens.
"""

import re
from typing import Any

from tatsu.buffering import Buffer
from tatsu.exceptions import FailedParse, OptionSucceeded
from tatsu.infos import ParseInfo, ParseState

from amqtt_rest_bridge.lot.grammar.route_parser import COMMENTS, WHITESPACE, RouteParser

_LINE_COMMENT = r"(?:\/\/|--)[^\n]*"
_SKIPPED_COMMENT = r"(?<!\S)\/\*[\s\S]*?\*\/|"  # of the rule SKIPPED
_SKIPPED_REST = r"(?>(?:[^\n]+|\n(?![^\S\n]*(?i:DEFINE)(?![\w-])))*)"


class _Ast(dict[str, Any]):
    """The named parts of what a rule has read; None for others. TatSu's own looks for attributes of each name."""

    __slots__ = ("parseinfo",)

    def __missing__(self, _: str) -> None:
        return None


class _Failed(FailedParse):  # type: ignore[misc]
    """What a rule, token or pattern raises that does not fit; it says nothing, since another option will."""

    __init__ = Exception.__init__


class Parser(RouteParser):
    """Does without what costs TatSu (5.14 to 5.15) two thirds of all time and no rule of ours needs.

    That is its memory of what it tried (none is tried twice in one place but at a fault), left recursion, its trace and
    messages, names that are read twice in one rule, and a generator for each choice and option.
    """

    def _call(self, ruleinfo: Any) -> Any:
        tokenizer, name = self._tokenizer, ruleinfo.name
        begin = tokenizer._pos  # its property `pos` costs a call
        if not name[0].isupper():
            tokenizer.next_token()
        first, self._last_node = tokenizer._pos, None
        state = ParseState(first, _Ast())
        self._statestack.append(state)
        try:
            ruleinfo.impl(self)
            node: Any = state.ast
            if not node:
                node = tuple(state.cst) if type(state.cst) is list else state.cst
            elif "@" in node:
                node = node["@"]
            else:
                node.parseinfo = ParseInfo(tokenizer, name, first, tokenizer._pos, 0, 0)
            action = getattr(self._semantics, name, None)
            if action is not None:
                node = action(node)
        except FailedParse:
            tokenizer._pos = begin
            raise
        finally:
            self._statestack.pop()
        self._append_cst(node)
        return node

    def _push_ast(self, copyast: bool = False) -> None:
        state, begin = self._statestack[-1], self._tokenizer._pos
        state.pos = begin
        self._statestack.append(ParseState(begin, _Ast(state.ast) if copyast else _Ast()))

    def _define(self, keys: list[str], list_keys: object = None) -> None:  # noqa: ARG002  # TatSu's signature
        ast = self._statestack[-1].ast
        for key in keys:
            ast.setdefault(key)

    def name_last_node(self, name: str) -> None:
        """Name what was read last."""
        self._statestack[-1].ast[name] = self._last_node

    def _error(self, item: Any, exclass: Any = None) -> None:  # noqa: ARG002  # TatSu's signature
        raise _Failed

    def _option(self) -> "_Option":
        return _Option(self)

    def _choice(self) -> "_Choice":
        return _Choice(self)

    def _optional(self) -> "_Optional":
        return _Optional(self)


class _Choice:
    """Options in turn, until one has succeeded."""

    __slots__ = ("_parser",)

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def __enter__(self) -> None:
        self._parser._last_node = None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is OptionSucceeded


class _Optional(_Choice):
    """What may be left out."""

    __slots__ = ()

    def __enter__(self) -> None:
        parser = self._parser
        parser._last_node = None
        parser._cut_stack.append(False)
        parser._push_ast(copyast=True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        parser = self._parser
        is_cut = parser._cut_stack.pop()
        if kind is None:
            parser._merge_ast()
            return True
        parser._pop_ast()
        return not is_cut and issubclass(kind, FailedParse)


class _Option(_Optional):
    """One of a choice, which ends it when it succeeds."""

    __slots__ = ()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        is_failed = super().__exit__(kind)
        if kind is None:
            raise OptionSucceeded
        return is_failed


class Text(Buffer):  # type: ignore[misc]
    """Skips white space and comments with one expression: TatSu's own three take a third of all time.

    Lines are counted in the report, of faults only; TatSu's table has an entry for each character.
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
