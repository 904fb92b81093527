"""Text to words, words to stems, and how near two words or two titles are. Pure; any thread may call it.

Titles, contents and queries all pass through `words`, so both sides of a search agree on what a word is: folding of
case and accents, splitting, bigrams for scripts without spaces, stop words. Stems are Porter's: "connections" becomes
"connect". Only here are PyStemmer and rapidfuzz imported. Of Snowball's algorithms `porter` (M. F. Porter, "An
algorithm for suffix stripping", Program 14(3), 1980) ranks best on three test collections: `english` loses .006 nDCG on
the questions of CACM. The same package in pure Python, `snowballstemmer`, takes 14 us a word, this one 0.4 us; indexing
stems each word of a library once.
"""

import re
import threading
import unicodedata
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final

import Stemmer
from rapidfuzz import fuzz, process
from rapidfuzz.distance import OSA

# Longer words are cut, so that pasted base64 does not fill the vocabulary with words that are never typed.
MAX_WORD_LENGTH: Final = 64

# One pass in C that lowers letters and blanks out all else: half as long again as splitting by a regular expression.
_ASCII: Final = str.maketrans({chr(code): chr(code).lower() if chr(code).isalnum() else " " for code in range(128)})
# Marks that are dropped so that "é" is found as "e": Latin, Cyrillic, Hebrew points, Arabic vowel signs.
_MARKS: Final = "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670"
# Scripts written without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han, and Hangul, whose particles stick
# to their nouns.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
# Indic scripts write vowels as marks that \\w does not take for letters.
_INDIC: Final = "\u0900-\u0dff"
_RUN: Final = re.compile(rf"[\w{_MARKS}{_INDIC}{_UNSPACED}\u3099\u309a]+")
_MARK: Final = re.compile(f"[{_MARKS}]+")
# Letters that Unicode takes for letters of their own, not for an accented one.
_LETTERS: Final = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ħ": "h", "ı": "i", "æ": "ae", "œ": "oe", "ð": "d", "þ": "th"}
)
_WORD: Final = re.compile(rf"([{_UNSPACED}]+)|((?:(?![{_UNSPACED}])[\w{_INDIC}])+)")

STOP_WORDS: Final = frozenset(
    """
    a about above after again against all also am an and any anybody anyone anything are aren as at be because been
    before being below between both but by can cannot could couldn d did didn do does doesn doing don down during each
    either else every everybody everyone everything few for from further had hadn has hasn have haven having he her here
    hers herself him himself his how however i if in into is isn it its itself just ll m may me might more most mustn my
    myself neither no nobody none nor not nothing now o of off on once only or other ought our ours ourselves out over
    own re s same shall shan she should shouldn so some somebody someone something such t than that the their theirs
    them themselves then there these they this those through to too under until up upon us ve very was wasn we were
    weren what when where whether which while who whom whose why will with won would wouldn you your yours yourself
    yourselves
    """.split()  # noqa: SIM905 - a list of 200 quoted words is unreadable
)
# Of German, French, Portuguese and Spanish, those that might be read as a word of the library; folded.
FOREIGN_STOP_WORDS: Final = frozenset(
    """
    aber alle als auch auf aus aux avec bei beim bin bis cada com como con cuando da dans das de del dem den der des
    desde die diese dieser dos du ein eine einem einen einer el em en entre es est et fur gegen het hinter ich im
    ist kann kein keine la las le les leur los mais mein meine meinem meinen meiner mes meu mi minha mit mon na nach
    nicht nous o oder ohne os ou para pas pelo por pour quand que qui sans se sehr sem seu sich sin sind sobre son
    sous su sua sur uber um uma un und une uno unter ver vom von vor votre was wenn wie wir wird y zu zum zur
    zwischen
    """.split()  # noqa: SIM905 - as above
)
_SHORTEST_STEMMED: Final = 3
_MOST_LIKENED: Final = 8  # words that are compared with all titles
_LIKE: Final = 60  # of 100: what is called near
_REMEMBERED: Final = 1 << 15  # stems, some 6 MB; 0.06 us for a word among them


def words(text: str) -> list[str]:
    """Split a text into words, in order, folded in case, width and accents: "Ｃafé" is "cafe", "straße" "strasse".

    Letters and digits make words, all else parts them. A run of CJK characters gives its overlapping pairs.
    """
    if text.isascii():
        found = text.translate(_ASCII).split()
    else:
        found = []
        for run in _RUN.findall(text.replace("_", " ").lower()):
            unmarked = run if run.isascii() else _MARK.sub("", unicodedata.normalize("NFKD", run.casefold()))
            for unspaced, word in _WORD.findall(unicodedata.normalize("NFC", unmarked).translate(_LETTERS)):
                pairs = [unspaced[at : at + 2] for at in range(len(unspaced) - 1)]
                found += [word] if word else pairs or [unspaced]
    return [word[:MAX_WORD_LENGTH] for word in found]


_stemming: Final = threading.Lock()
"""PyStemmer's objects are not made for several threads (its documentation, "Thread safety")."""
_stemmer: Final = Stemmer.Stemmer("porter", 0)  # without its cache, which costs more than stemming


@lru_cache(_REMEMBERED)
def stem(word: str) -> str:
    """Return the stem of a folded word (lower case, no accents).

    Words of one or two letters and words with anything but the letters a to z are their own stem.
    """
    if len(word) < _SHORTEST_STEMMED or not (word.isascii() and word.isalpha()):
        return word
    with _stemming:
        return str(_stemmer.stemWord(word))


def within(word: str, choices: Collection[str], most: int) -> list[tuple[str, int]]:
    """Return the choices at most `most` edits from the word, each with its number of edits.

    An edit inserts, drops or replaces a letter or swaps two neighbours (optimal string alignment).
    """
    near = process.extract(word, choices, scorer=OSA.distance, processor=None, score_cutoff=most, limit=None)
    return [(choice, int(edits)) for choice, edits, _ in near]


def title_likeness(query: str, title: str) -> float:
    """Return how much of a title's words a query shares, 0 to 1, whatever their order and repetition."""
    return fuzz.token_set_ratio(query, title, processor=None) / 100


def likest(text: str, titles: Mapping[str, str], most: int) -> tuple[str, ...]:
    """Return the keys of the titles that are most like a text, or a part of it, the likest first."""
    typed = " ".join(words(text)[:_MOST_LIKENED])
    found = process.extract(
        typed, titles, scorer=fuzz.partial_token_ratio, processor=None, score_cutoff=_LIKE, limit=most
    )
    return tuple(key for _, _, key in found)
