"""The REST_API routes that a text defines, as they are written: settings by name, what GET reads as `{env.X}`. Pure.

This reader exists because the API knows nothing of the bridge. It follows the grammar of `amqtt_rest_bridge/language`
and checks no value; a route whose text it does not understand to the end is left out, so that nothing wrong is shown of
it. A test holds it against the bridge's own reading of every route there is.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Final

_LONGEST: Final = 100_000  # characters; a longer text is not read
_COMMENT: Final = r"/\*(?>(?:[^*]+|\*(?!/))*)(?:\*/)?|(?://|--)[^\n]*"
_DEFINITION: Final = re.compile(
    rf"""{_COMMENT}|"[^"\n]*"|'[^'\n]*'|(?:\A|\n)[^\S\n]*(?P<define>DEFINE)(?![\w-])""", re.IGNORECASE
)
_STRING: Final = r"""{0}(?:[^{0}\\\n]|\\[^\n])*+{0}
    |{0}(?>(?:[^{0}\\\n]+|\\[^\n]|\\?\n(?![^\S\n]*(?i:(?:WITH|ADD)\s+[\w-]+\s*{0})))*){0}(?=[\s+]|\Z|/[/*]|--)"""
_TOKEN: Final = re.compile(
    rf"""(?P<layout>\s+|{_COMMENT})
    |(?P<string>{_STRING.format('"')}|{_STRING.format("'")})
    |(?P<plus>\+)
    |(?P<word>(?:(?!//|/\*|--)[^\s"'])+)""",
    re.VERBOSE,
)
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_ESCAPE: Final = re.compile(r"""\\([nt"'\\])""")
_ESCAPES: Final = {"n": "\n", "t": "\t"}
_SPANS: Final = frozenset(name + end for name in ("SECOND", "MINUTE", "HOUR", "DAY") for end in ("", "S"))
_CONFIGS: Final = ("REST_API_CONFIG", "ROUTE_CONFIG", "MQTT_CONFIG")
_READ: Final = re.compile(r"\{(env|secret)\.([A-Za-z0-9_.-]+)(?:\|[^{}]*)?\}")

Token = tuple[str, str]
"""Its kind (string, plus, word) and its text; a string without its quotes and with its escapes."""


@dataclass(frozen=True, slots=True)
class EventText:
    """An event: its settings, and its headers in their order."""

    name: str
    settings: dict[str, str] = field(default_factory=dict)
    headers: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RouteText:
    """A route: the settings of its REST_API_CONFIG, and its events."""

    name: str
    config: dict[str, str] = field(default_factory=dict)
    events: list[EventText] = field(default_factory=list)


class _UnreadableError(Exception):
    """The text is not what this reader knows."""


def routes_in(text: str) -> Iterator[RouteText]:
    """Yield the routes of type REST_API that can be read from a text; settings have their names in capitals."""
    if len(text) > _LONGEST:
        return
    text = text.replace("\r\n", "\n")
    starts = [match.start("define") for match in _DEFINITION.finditer(text) if match["define"]]
    for start, end in pairwise([*starts, len(text)]):
        try:
            yield _Definition(list(_tokens(text[start:end]))).route()
        except _UnreadableError:
            continue


def names_read(route: RouteText) -> Iterator[tuple[str, bool]]:
    """Yield the names that a route reads of its environment, and whether each one is a secret."""
    for settings in (route.config, *(event.settings for event in route.events)):
        for value in settings.values():
            yield from _read_in(value)
    for value in chain.from_iterable(pair for event in route.events for pair in event.headers):
        yield from _read_in(value)


def _read_in(value: str) -> Iterator[tuple[str, bool]]:
    for match in _READ.finditer(value):
        yield match[2], match[1] == "secret"


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise _UnreadableError
        at = match.end()
        if match.lastgroup == "string":
            yield "string", _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), match[0][1:-1])
        elif match.lastgroup != "layout":
            yield match.lastgroup, match[0]


class _Definition:
    """Read one definition, statement by statement."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def route(self) -> RouteText:
        self._expect("DEFINE")
        self._expect("ROUTE")
        route = RouteText(self._name())
        self._expect("WITH")
        self._expect("TYPE")
        if self._take()[1].upper() != "REST_API":
            raise _UnreadableError
        settings: dict[str, str] = {}
        headers: list[tuple[str, str]] | None = None
        while self._at < len(self._tokens):
            if self._keyword("WITH"):
                name = self._take()[1].upper()
                headers = None
                if name == "HEADERS":
                    headers = route.events[-1].headers if route.events else []
                elif name in settings:
                    raise _UnreadableError
                else:
                    settings[name] = self._value()
                continue
            self._expect("ADD")
            kind = self._take()[1].upper() if self._is(*_CONFIGS, "EVENT") else None
            if kind == "EVENT":
                route.events.append(EventText(self._name()))
                settings, headers = route.events[-1].settings, None
            elif kind is not None:
                settings, headers = route.config if kind == "REST_API_CONFIG" else {}, None
            elif headers is not None:
                headers.append((self._take()[1], self._value()))
            else:
                raise _UnreadableError
        return route

    def _value(self) -> str:
        """Read strings, what GET reads, times and words, joined by +."""
        parts = [self._part()]
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "plus":
            self._at += 1
            parts.append(self._part())
        return "".join(parts)

    def _part(self) -> str:
        if self._is("WITH", "ADD"):
            raise _UnreadableError
        kind, text = self._take()
        if kind == "plus":
            raise _UnreadableError
        if (kind, text.upper()) == ("word", "GET") and self._is("ENV", "SECRET"):
            return f"{{{self._take()[1].lower()}.{self._name()}}}"
        if kind == "word" and text.isdecimal() and self._is(*_SPANS):
            return f"{text} {self._take()[1]}"
        return text

    def _name(self) -> str:
        name = self._take()[1]
        if not _NAME.fullmatch(name):
            raise _UnreadableError
        return name

    def _is(self, *words: str) -> bool:
        kind, text = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        return kind == "word" and text.upper() in words

    def _keyword(self, word: str) -> bool:
        found = self._is(word)
        self._at += found
        return found

    def _expect(self, word: str) -> None:
        if not self._keyword(word):
            raise _UnreadableError

    def _take(self) -> Token:
        if self._at == len(self._tokens):
            raise _UnreadableError
        self._at += 1
        return self._tokens[self._at - 1]
