"""Porter's stemmer: the word "connections" becomes the stem "connect".

Pure functions on folded words (lower case, no accents); any thread may call them. The rules are those of M. F. Porter,
"An algorithm for suffix stripping", Program 14(3), 1980, with the two departures of his own reference program
("bli" and "logi" in step 2). Words with anything but the letters a to z are returned as they are.
"""

from typing import Final

_KINDS: Final = str.maketrans(
    {chr(code): "v" if chr(code) in "aeiou" else "c" for code in range(ord("a"), ord("z") + 1)}
)

# Suffix to replacement. A step takes the longest suffix that the word has; when its condition fails, that was the step.
_STEP_2: Final = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP_3: Final = {
    "icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": "",
}  # fmt: skip
_STEP_4: Final = dict.fromkeys(
    ("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
     "ous", "ive", "ize"), "",
)  # fmt: skip


def stem(word: str) -> str:
    """Return the stem of a folded word; words of one or two letters and those with digits are their own stem."""
    if len(word) < 3 or not (word.isascii() and word.isalpha()):
        return word
    word = _past_and_gerund(_plural(word))
    if word[-1] == "y" and "v" in _kinds(word[:-1]):
        word = word[:-1] + "i"
    word = _replace(word, _STEP_2, 7, 1)
    word = _replace(word, _STEP_3, 5, 1)
    word = _replace(word, _STEP_4, 5, 2)
    return _final_letters(word)


def _kinds(word: str) -> str:
    """Write a word as v and c: a y is a vowel after a consonant."""
    kinds = word.translate(_KINDS)
    if "y" not in word:
        return kinds
    letters = list(kinds)
    for at, letter in enumerate(word):
        if letter == "y":
            letters[at] = "v" if at and letters[at - 1] == "c" else "c"
    return "".join(letters)


def _measure(word: str) -> int:
    """Count Porter's m: how often a run of vowels is followed by a run of consonants."""
    return _kinds(word).count("vc")


def _plural(word: str) -> str:
    if word[-1] != "s" or word.endswith("ss"):
        return word
    return word[:-2] if word.endswith(("sses", "ies")) else word[:-1]


def _past_and_gerund(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    if word.endswith("ed"):
        base = word[:-2]
    elif word.endswith("ing"):
        base = word[:-3]
    else:
        return word
    kinds = _kinds(base)
    if "v" not in kinds:
        return word
    if base.endswith(("at", "bl", "iz")) or (kinds.count("vc") == 1 and _ends_in_short_syllable(base, kinds)):
        return base + "e"
    if _ends_in_double_consonant(base, kinds) and base[-1] not in "lsz":
        return base[:-1]
    return base


def _replace(word: str, suffixes: dict[str, str], longest: int, measure: int) -> str:
    for length in range(min(longest, len(word)), 1, -1):
        suffix = word[-length:]
        if suffix in suffixes:
            base = word[:-length]
            if _measure(base) < measure or (suffix == "ion" and base[-1] not in "st"):
                return word
            return base + suffixes[suffix]
    return word


def _final_letters(word: str) -> str:
    if word[-1] == "e":
        base = word[:-1]
        kinds = _kinds(base)
        measure = kinds.count("vc")
        if measure > 1 or (measure == 1 and not _ends_in_short_syllable(base, kinds)):
            word = base
    if word.endswith("ll") and _measure(word) > 1:
        return word[:-1]
    return word


def _ends_in_double_consonant(word: str, kinds: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and kinds[-1] == "c"


def _ends_in_short_syllable(word: str, kinds: str) -> bool:
    """Tell whether a word ends consonant, vowel, consonant, the last not w, x or y (Porter's *o)."""
    return kinds.endswith("cvc") and word[-1] not in "wxy"
