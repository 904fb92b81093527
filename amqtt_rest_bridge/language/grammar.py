"""Text of the route language to its tree, by `route.tatsu`; the only use of TatSu. Pure, for any thread.

The text is scanned once. Parsing never fails: what is wrong comes back as a node of its own.
"""

import pickle
import re
from functools import cache
from importlib import resources
from typing import Any

import tatsu
from tatsu.buffering import Buffer

from amqtt_rest_bridge.language import grammar_cache
from amqtt_rest_bridge.language.nodes import (
    BlockNode,
    ConditionTree,
    Headers,
    Junk,
    OpenComment,
    Operation,
    OtherNode,
    Piece,
    RouteNode,
    Setting,
    Term,
    Tree,
)

_COMMENT_BEHIND = re.compile(r"[^\S\n]*(?://|--|/\*)[^\n]*")


def parse_condition(text: str, compiled: bytes = b"") -> ConditionTree:
    """Parse a condition; raises `RecursionError` for hundreds of parentheses in each other."""
    tree: ConditionTree = _parse(text, compiled, start="condition")
    return tree


def parse(text: str, compiled: bytes = b"") -> Tree:
    """Parse a text of the route language; `compiled` is what `compiled_grammar` returned in another process, if any."""
    tree: Tree = _parse(text, compiled)
    return tree


def _parse(text: str, compiled: bytes, **settings: Any) -> Any:
    # The line break: the grammar's DEFINE begins with one. TatSu's memory of what it tried costs a fifth of the time,
    # and no rule of ours is tried twice in one place but at a fault.
    nodes = _Nodes()
    return _model(compiled).parse("\n" + text, tokenizercls=_Text, semantics=nodes, memoization=False, **settings)


@cache
def compiled_grammar() -> bytes:
    """Return the compiled grammar for another process, which loads it in 20 ms; compiling it takes 300."""
    return grammar_cache.seal(pickle.dumps(_model(b"")), _version())


@cache
def _model(compiled: bytes) -> Any:
    """Load or compile the grammar, once and only when there is something to parse."""
    version = _version()  # another one: grammar or TatSu was upgraded since, perhaps while the broker runs
    pickled = grammar_cache.unseal(compiled, version) or grammar_cache.unseal(grammar_cache.load(), version)
    if pickled:
        return pickle.loads(pickled)  # noqa: S301  # written by this package, see grammar_cache
    model = tatsu.compile(_grammar(), colorize=False)
    grammar_cache.save(grammar_cache.seal(pickle.dumps(model), version))
    return model


def _version() -> str:
    return f"{tatsu.__version__} {_grammar()}"


def _grammar() -> str:
    return resources.files(__package__).joinpath("route.tatsu").read_text(encoding="utf-8")


class _Text(Buffer):  # type: ignore[misc]
    """Skips white space and comments with one expression: TatSu's own three take a third of all time.

    Lines are counted in the report, of faults alone; TatSu's table has an entry for each character.
    """

    def __init__(self, text: str, **settings: Any) -> None:
        self._pos: int
        super().__init__(text, **settings)
        skipped = (self.config.whitespace, self.config.comments, self.config.eol_comments)
        self._skipped = re.compile(f"(?:{'|'.join(skipped)})++")

    def next_token(self) -> None:
        found = self._skipped.match(self.text, self._pos)
        if found is not None:
            self._pos = found.end()

    def posline(self, pos: int | None = None) -> int:  # noqa: ARG002  # TatSu's signature
        return 0

    def _postprocess(self) -> None:
        self._len = len(self.text)


class _Nodes:
    """Turns TatSu's dictionaries into nodes: one method for each rule that has a node of its own."""

    def file(self, ast: Any) -> Tree:
        return Tree(ast["outside"], tuple(ast["definitions"]))

    def outside(self, ast: Any) -> Junk:
        return Junk(ast["text"], (), _offset(ast))

    def route(self, ast: Any) -> RouteNode:
        return RouteNode(ast["name"], has_type=True, body=tuple(ast["body"]), offset=_define(ast))

    def headless_route(self, ast: Any) -> RouteNode:
        open_strings = tuple(word for word in ast["unread"] if isinstance(word, Piece) and word.open_at is not None)
        return RouteNode(ast["name"], ast["type"] is not None, tuple(ast["body"]), _define(ast), open_strings)

    def other(self, ast: Any) -> OtherNode:
        name, route_type = ast["name"], ast["type"]
        return OtherNode(ast["kind"], name and name.text, route_type and route_type.text, _define(ast))

    def event(self, ast: Any) -> BlockNode:
        return BlockNode(Piece("EVENT", _offset(ast)), _pieces(ast), tuple(ast["lines"]), _offset(ast), known=True)

    def config(self, ast: Any) -> BlockNode:
        return BlockNode(Piece(ast["kind"], _offset(ast)), _pieces(ast), tuple(ast["lines"]), _offset(ast), known=True)

    def unknown_block(self, ast: Any) -> BlockNode:
        return BlockNode(ast["name"], _pieces(ast), tuple(ast["lines"]), _offset(ast), known=False)

    def setting(self, ast: Any) -> Setting:
        return Setting(ast["name"], _pieces(ast), _offset(ast))

    header = setting

    def headers(self, ast: Any) -> Headers:
        return Headers(_pieces(ast), tuple(ast["lines"]), _offset(ast))

    def fault(self, ast: Any) -> Junk | OpenComment:
        if isinstance(ast, OpenComment):
            return ast
        whole, end = ast.parseinfo.tokenizer.text, ast.parseinfo.endpos
        comment = _COMMENT_BEHIND.match(whole, end)  # shown too: an address without quotes is cut by its //
        text = whole[ast.parseinfo.pos : comment.end() if comment else end].rstrip()
        open_strings = tuple(word for word in ast["words"] if word.open_at is not None)
        if open_strings:
            last = open_strings[0]
            text = text[: last.offset - _offset(ast)] + last.text
        return Junk(text, open_strings, _offset(ast))

    def open_comment(self, ast: Any) -> OpenComment:
        return OpenComment(_offset(ast))

    def string(self, ast: Any) -> Piece:
        return ast if isinstance(ast, Piece) else Piece(ast["text"], _offset(ast))

    def open_string(self, ast: Any) -> Piece:
        text: str = ast["open"]
        return Piece(text.rstrip("\r\\") + text[0], _offset(ast), open_at=_offset(ast))

    def get(self, ast: Any) -> Piece:
        name: Piece = ast["name"]
        return Piece(name.text, _offset(ast), ast["source"], name.open_at)

    def word(self, ast: Any) -> Piece:
        return Piece(ast["text"], _offset(ast))

    bare_name = junk = route_name = title = string

    def condition(self, ast: Any) -> ConditionTree:
        return ConditionTree(ast["test"], ast["leftover"])

    def either(self, ast: Any) -> Operation:
        return _joined("OR", ast)

    def both(self, ast: Any) -> Operation:
        return _joined("AND", ast)

    def negation(self, ast: Any) -> Operation:
        return Operation("NOT", (ast["of"],), _offset(ast))

    def group(self, ast: Any) -> Operation:
        inner: Operation = ast["of"]
        return inner if ast["end"] else Operation("(", (inner,), _offset(ast))

    def existence(self, ast: Any) -> Operation:
        return Operation("EXISTS", (ast["of"],), _offset(ast))

    def membership(self, ast: Any) -> Operation:
        return _negated(ast, Operation("IN", (ast["of"], *ast["items"]), _offset(ast)))

    def likeness(self, ast: Any) -> Operation:
        return _negated(ast, Operation("LIKE", (ast["of"], ast["pattern"]), _offset(ast)))

    def comparison(self, ast: Any) -> Operation:
        return Operation(ast["operator"], (ast["left"], ast["right"]), _offset(ast))

    def lone(self, ast: Any) -> Operation:
        return Operation("lone", (ast["of"],), _offset(ast))

    def placeholder(self, ast: Any) -> Term:
        return Term(ast.parseinfo.rule, ast["text"], _offset(ast))

    number = quoted = constant = missing = leftover = placeholder


def _joined(name: str, operations: Any) -> Operation:
    first: Operation = operations[0]
    return first if len(operations) == 1 else Operation(name, tuple(operations), first.offset)


def _negated(ast: Any, operation: Operation) -> Operation:
    return Operation("NOT", (operation,), operation.offset) if ast["negated"] else operation


def _offset(ast: Any) -> int:
    offset: int = ast.parseinfo.pos - 1
    return offset


def _define(ast: Any) -> int:
    offset: int = ast.parseinfo.pos + len(ast["define"]) - len("DEFINE") - 1
    return offset


def _pieces(ast: Any) -> tuple[Piece, ...]:
    return tuple(ast["pieces"] or ())
