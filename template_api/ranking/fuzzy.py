"""Approximate comparison of words and titles: the one module that imports rapidfuzz.

Pure functions; any thread may call them.
"""

from collections.abc import Sequence

from rapidfuzz import fuzz, process
from rapidfuzz.distance import OSA


def within(word: str, choices: Sequence[str], most: int) -> list[tuple[str, int]]:
    """Return the choices at most `most` edits from the word, each with its number of edits.

    An edit inserts, drops or replaces a letter or swaps two neighbours (optimal string alignment).
    """
    near = process.extract(word, choices, scorer=OSA.distance, processor=None, score_cutoff=most, limit=None)
    return [(choice, int(edits)) for choice, edits, _ in near]


def title_likeness(query: str, title: str) -> float:
    """Return how much of a title's words a query shares, 0 to 1, whatever their order and repetition."""
    return fuzz.token_set_ratio(query, title, processor=None) / 100
