"""Code with its parts marked for the style sheet; the lexer of the route language. Pure; the one door for Pygments."""

from functools import cache
from typing import ClassVar, Final

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer, RegexLexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, Operator, String, Text

# Decision: cells in other languages, and cells this long, are shown plainly: lexers search with regular expressions, of
# which some take minutes for a text that is made for it.
_LANGUAGES: Final = frozenset(
    {"json", "yaml", "python", "javascript", "bash", "sh", "shell", "ini", "toml", "xml", "sql"}
)
_LONGEST: Final = 50_000


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
        "double": [
            (r'"', String, "#pop"),
            (r"\{[\w.|-]+\}", String.Interpol),
            (r"\\.", String.Escape),
            (r'[^"\\{]+|.', String),
        ],
        "single": [
            (r"'", String, "#pop"),
            (r"\{[\w.|-]+\}", String.Interpol),
            (r"\\.", String.Escape),
            (r"[^'\\{]+|.", String),
        ],
    }


def highlighted(code: str, language: str) -> Markup:
    """Return code as HTML: escaped, in `span` elements with Pygments' short class names where it knows the language."""
    lexer = _lexer(language.lower()) if len(code) <= _LONGEST else None
    if lexer is None:
        return Markup.escape(code)
    return Markup(highlight(code, lexer, _FORMATTER))  # noqa: S704  # the formatter escapes what it marks


_FORMATTER: Final = HtmlFormatter(nowrap=True)


@cache
def _lexer(language: str) -> Lexer | None:
    if language == "lot":
        return LotLexer(stripnl=False)
    return get_lexer_by_name(language, stripnl=False) if language in _LANGUAGES else None
