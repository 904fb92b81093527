"""Text of the route language to its tree, by `route.tatsu`; the only use of TatSu. For any thread.

The text is scanned once. Parsing never fails: what is wrong comes back as a node of its own. A compiled
grammar is kept in a file for later processes, as compiling it takes some 0.6 s of CPU.
"""

import contextlib
import hashlib
import importlib.util
import pickle
import re
import stat
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, cast

import tatsu
from tatsu.buffering import Buffer

from amqtt_rest_bridge.language.nodes import (
    BlockNode,
    ConditionTree,
    HeadersNode,
    Junk,
    OpenComment,
    Operation,
    OtherNode,
    Piece,
    RouteNode,
    SettingNode,
    Term,
    Tree,
)

_GRAMMAR = Path(__file__).with_name("route.tatsu")
_FILE = Path(importlib.util.cache_from_source(str(_GRAMMAR))).with_suffix(".pickle")
_COMMENT_BEHIND = re.compile(r"[^\S\n]*(?://|--|/\*)[^\n]*")


def parse_condition(text: str, compiled: bytes = b"") -> ConditionTree:
    """Parse a condition; raises `RecursionError` for hundreds of parentheses in each other."""
    return cast(ConditionTree, _parse(text, compiled, start="condition"))


def parse(text: str, compiled: bytes = b"") -> Tree:
    """Parse a text of the route language; `compiled` is what `compiled_grammar` returned in another process, if any."""
    return cast(Tree, _parse(text, compiled))


def _parse(text: str, compiled: bytes, **settings: Any) -> Any:
    # The line break: the grammar's DEFINE begins with one. TatSu's memory of what it tried costs a fifth of the time,
    # and no rule of ours is tried twice in one place but at a fault.
    nodes = _Nodes()
    return _model(compiled).parse("\n" + text, tokenizercls=_Text, semantics=nodes, memoization=False, **settings)


@cache
def compiled_grammar() -> bytes:
    """Return the compiled grammar for another process, which loads it in 20 ms."""
    return _seal(pickle.dumps(_model(b"")), _version())


@cache
def _model(compiled: bytes) -> Any:
    """Load or compile the grammar, once and only when there is something to parse."""
    version = _version()  # another one: grammar or TatSu was upgraded since, perhaps while the broker runs
    pickled = _unseal(compiled, version) or _unseal(_kept(), version)
    if pickled:
        return pickle.loads(pickled)  # noqa: S301  # written by this package, see _kept
    model = tatsu.compile(_GRAMMAR.read_text(encoding="utf-8"), colorize=False)
    _keep(_seal(pickle.dumps(model), version))
    return model


def _version() -> str:
    return f"{tatsu.__version__} {_GRAMMAR.read_text(encoding='utf-8')}"


def _seal(content: bytes, version: str) -> bytes:
    """Return the content behind a digest of it and of the version of what it is made from."""
    return hashlib.sha256(version.encode() + content).digest() + content


def _unseal(sealed: bytes, version: str) -> bytes:
    """Return the content, or b"" if it is damaged or of another version."""
    content = sealed[hashlib.sha256().digest_size :]
    return content if _seal(content, version) == sealed else b""


def _kept() -> bytes:
    """Return what `_keep` wrote in an earlier process, or b"": nothing yet, or a place that every user may write to.

    The file is in `__pycache__` beside this module, or below `PYTHONPYCACHEPREFIX`, and follows Python's rules for
    compiled modules: what can be written there could also be put in the place of this module, so that unpickling it
    adds no risk.
    """
    try:
        if any(path.stat().st_mode & stat.S_IWOTH for path in (_FILE, _FILE.parent)):
            return b""
        return _FILE.read_bytes()
    except OSError:
        return b""


def _keep(sealed: bytes) -> None:
    """Replace the file atomically; no error where it cannot be written, as in a read-only or a root's installation."""
    if sys.dont_write_bytecode:
        return
    with contextlib.suppress(OSError):
        _FILE.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_FILE.parent) as folder:  # removed whatever happens: a full disk, say
            new = Path(folder, _FILE.name)
            new.write_bytes(sealed)
            new.chmod(0o644)
            new.replace(_FILE)


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

    def setting(self, ast: Any) -> SettingNode:
        return SettingNode(ast["name"], _pieces(ast), _offset(ast))

    header = setting

    def headers(self, ast: Any) -> HeadersNode:
        return HeadersNode(_pieces(ast), tuple(ast["lines"]), _offset(ast))

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
        if isinstance(ast, Piece):
            return ast
        text: str = ast["text"]
        return Piece(text, _offset(ast), is_string=text[:1] in ("'", '"'))

    def open_string(self, ast: Any) -> Piece:
        text: str = ast["open"]
        return Piece(text.rstrip("\r\\") + text[0], _offset(ast), open_at=_offset(ast), is_string=True)

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
        return Operation("NOT", _offset(ast), (ast["of"],))

    def group(self, ast: Any) -> Operation:
        inner: Operation = ast["of"]
        return inner if ast["end"] else Operation("(", _offset(ast), (inner,))

    def existence(self, ast: Any) -> Operation:
        return Operation("EXISTS", _offset(ast), terms=(ast["of"],))

    def membership(self, ast: Any) -> Operation:
        return _negated(ast, Operation("IN", _offset(ast), terms=(ast["of"], *ast["items"])))

    def likeness(self, ast: Any) -> Operation:
        return _negated(ast, Operation("LIKE", _offset(ast), terms=(ast["of"], ast["pattern"])))

    def comparison(self, ast: Any) -> Operation:
        return Operation(ast["operator"], _offset(ast), terms=(ast["left"], ast["right"]))

    def lone(self, ast: Any) -> Operation:
        return Operation("lone", _offset(ast), terms=(ast["of"],))

    def placeholder(self, ast: Any) -> Term:
        return Term(ast.parseinfo.rule, ast["text"], _offset(ast))

    number = quoted = constant = missing = leftover = placeholder


def _joined(name: str, operations: Any) -> Operation:
    first: Operation = operations[0]
    return first if len(operations) == 1 else Operation(name, first.offset, tuple(operations))


def _negated(ast: Any, operation: Operation) -> Operation:
    return Operation("NOT", operation.offset, (operation,)) if ast["negated"] else operation


def _offset(ast: Any) -> int:
    offset: int = ast.parseinfo.pos - 1
    return offset


def _define(ast: Any) -> int:
    offset: int = ast.parseinfo.pos + len(ast["define"]) - len("DEFINE") - 1
    return offset


def _pieces(ast: Any) -> tuple[Piece, ...]:
    return tuple(ast["pieces"] or ())
