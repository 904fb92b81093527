"""Markdown and code from a template's author to HTML that can do nothing. Pure.

Raw HTML is text, links lead to http, https and mail addresses only, and images are links: no page loads anything from
another host. Code is marked for the style sheet; the lexer of the route language is here.
The one door for markdown-it-py and Pygments.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Final

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer, RegexLexer, include
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, Operator, String, Text

_ELSEWHERE: Final = re.compile(r"[a-z][a-z0-9+.-]*:|/[/\\]|\\", re.IGNORECASE)
_SAFE_SCHEME: Final = re.compile(r"(https?|mailto):", re.IGNORECASE)
_REL: Final = "noopener noreferrer nofollow"
_LONGEST: Final = 200_000  # characters, 0.25 s of CPU; longer texts are shown as they are
_LOWEST: Final = 6
# Cells in other languages, and cells this long, are shown plainly: lexers search with regular expressions, of
# which some take minutes for a text that is made for it.
_LANGUAGES: Final = ("json", "yaml", "python", "javascript", "bash", "sh", "shell", "ini", "toml", "xml", "sql")
_LONGEST_CODE: Final = 50_000


def rendered(text: str, *, below: int = 2) -> Markup:
    """Return Markdown as HTML; its headings follow one of the level `below`."""
    if len(text) > _LONGEST:
        return Markup("<pre>{}</pre>").format(text)
    return Markup(_MARKDOWN.render(text, {"below": below}))  # noqa: S704  # made from escaped text, see above


def _is_safe_link(url: str) -> bool:
    """Allow addresses with a safe scheme, and fragments and paths, but not those of another host (`//host`)."""
    address = re.sub(r"[\x00-\x20]", "", url)
    return _SAFE_SCHEME.match(address) is not None or not _ELSEWHERE.match(address)


def _lower_headings(state: StateCore) -> None:
    """Put the headings of a text below that of the page, so that the page has one outline."""
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(_LOWEST, int(token.tag[1:]) + state.env['below'])}"


class _Renderer(RendererHTML):
    """Images are links, links lead away without a referrer, and code is highlighted."""

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:  # noqa: ARG002
        """Return a link to the image."""
        token = tokens[idx]
        label = escapeHtml(token.content or "image")
        return f'<a href="{escapeHtml(str(token.attrs["src"]))}" rel="{_REL}">{label}</a>'

    def link_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Return the begin of a link."""
        tokens[idx].attrSet("rel", _REL)
        return self.renderToken(tokens, idx, options, env)

    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:  # noqa: ARG002
        """Return a block of code."""
        token = tokens[idx]
        return f'<pre tabindex="0"><code>{highlighted(token.content, token.info.partition(" ")[0])}</code></pre>\n'

    code_block = fence


_MARKDOWN: Final = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
_MARKDOWN.validateLink = _is_safe_link  # type: ignore[method-assign]  # documented as the way to replace it
_MARKDOWN.core.ruler.push("lower_headings", _lower_headings)


class LotLexer(RegexLexer):
    """The route language: `DEFINE ROUTE ... ADD ... WITH ...`."""

    name = "LoT"
    tokens: ClassVar = {
        "root": [
            (r"\s+", Text),
            (r"//[^\n]*|--[^\n]*", Comment.Single),
            (r"/\*", Comment.Multiline, "comment"),
            (r'"', String, "double"),
            (r"'", String, "single"),
            (r"(?i)(DEFINE|ROUTE|WITH|TYPE|ADD|EVENT|GET|ENV|SECRET|TRUE|FALSE)\b", Keyword),
            (r"[A-Z][A-Z0-9_]+\b", Name.Attribute),
            (r"\d+(\.\d+)?\b", Number),
            (r"[\w.-]+", Name),
            (r"\S", Operator),
        ],
        "comment": [(r"[^*]+", Comment.Multiline), (r"\*/", Comment.Multiline, "#pop"), (r"\*", Comment.Multiline)],
        "double": [('"', String, "#pop"), include("text"), (r'[^"\\{]+|.', String)],
        "single": [("'", String, "#pop"), include("text"), (r"[^'\\{]+|.", String)],
        "text": [(r"\{[\w.|-]+\}", String.Interpol), (r"\\.", String.Escape)],
    }


def highlighted(code: str, language: str) -> Markup:
    """Return code as HTML: escaped, in `span` elements with Pygments' short class names where it knows the language."""
    lexer = _lexer(language.lower()) if len(code) <= _LONGEST_CODE else None
    if lexer is None:
        return Markup.escape(code)
    return Markup(highlight(code, lexer, _FORMATTER))  # noqa: S704  # the formatter escapes what it marks


_FORMATTER: Final = HtmlFormatter(nowrap=True)


@cache
def _lexer(language: str) -> Lexer | None:
    if language == "lot":
        return LotLexer(stripnl=False)
    return get_lexer_by_name(language, stripnl=False) if language in _LANGUAGES else None
