"""Text to words: folding of case and accents, splitting, bigrams for scripts without spaces, stop words.

Pure functions; any thread may call them. Titles, contents and queries all pass through `words`, so both sides of a
search agree on what a word is.
"""

import re
import unicodedata
from typing import Final

# Longer runs of letters are cut into pieces of this size, so that a pasted base64 blob stays a handful of short words.
MAX_WORD_LENGTH: Final = 64

_ASCII_WORD: Final = re.compile(rf"[a-z0-9]{{1,{MAX_WORD_LENGTH}}}")
# Marks that are dropped so that "é" is found as "e": Latin, Cyrillic, Hebrew points and Arabic vowel signs.
_ACCENT: Final = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670]+"
)
# Scripts written without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han, and Hangul, whose particles stick
# to their nouns.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
# Indic scripts write vowels as marks that \w does not take for letters.
_INDIC: Final = "\u0900-\u0dff"
_ANY_WORD: Final = re.compile(rf"([{_UNSPACED}]+)|((?:(?![{_UNSPACED}])(?:[^\W_]|[{_INDIC}])){{1,{MAX_WORD_LENGTH}}})")
_UNSPACED_RUN: Final = re.compile(f"[{_UNSPACED}]")

STOP_WORDS: Final = frozenset(
    """
    a about above after again against all also am an and any are aren as at be because been before being below between
    both but by can cannot could couldn d did didn do does doesn doing don down during each few for from further had
    hadn has hasn have haven having he her here hers herself him himself his how however i if in into is isn it its
    itself just ll m may me might more most mustn my myself no nor not now o of off on once only or other ought our ours
    ourselves out over own re s same shall shan she should shouldn so some such t than that the their theirs them
    themselves then there these they this those through to too under until up upon us ve very was wasn we were weren
    what when where whether which while who whom whose why will with won would wouldn you your yours yourself
    yourselves
    """.split()  # noqa: SIM905 - a list of 180 quoted words is unreadable
)


def fold(text: str) -> str:
    """Fold case, width and accents: "Ｃafé" becomes "cafe", "STRASSE" and "straße" the same."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", _ACCENT.sub("", unicodedata.normalize("NFKD", text.casefold())))


def words(text: str) -> list[str]:
    """Split a text into folded words, in order; a run of CJK characters gives its overlapping pairs."""
    folded = fold(text)
    if folded.isascii():
        return _ASCII_WORD.findall(folded)
    found: list[str] = []
    for run, word in _ANY_WORD.findall(folded):
        if word:
            found.append(word)
        else:
            found.extend(_bigrams(run))
    return found


def is_unspaced(word: str) -> bool:
    """Tell whether a word is of a script without spaces, where an edit or a prefix means nothing."""
    return _UNSPACED_RUN.search(word) is not None


def _bigrams(run: str) -> list[str]:
    return [run] if len(run) == 1 else [run[at : at + 2] for at in range(len(run) - 1)]
