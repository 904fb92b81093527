"""Which known name was meant by one that is not known, and the question `did you mean X?`. Pure; any thread.

Only names are compared. Hints that know more than names, such as what other programs call a setting, are in
`lot/hints.py`.

The bridge's only use of rapidfuzz, which is imported for the first name that is not known.
"""

from collections.abc import Iterable

_ALIKE = 0.87  # Jaro-Winkler, for endings and parts that are missing: REST_CONFIG means REST_API_CONFIG


def closest(name: str, names: Iterable[str], *, parts: bool = False) -> str | None:
    """Return the name that was probably meant, or None; case and the difference of - and _ do not matter.

    With `parts`, the end of a name counts when only one ends so (CLIENT means ENABLE_CLIENT), then any part of one.
    """
    from rapidfuzz import process
    from rapidfuzz.distance import OSA, JaroWinkler

    names, wanted = list(names), _normalised(name)
    known = [_normalised(each) for each in names]
    letters, slips = sorted(wanted), min(2, len(name) // 3)  # letters that are wrong, missing, too many or swapped
    swapped = [at for at, each in enumerate(known) if len(each) == len(wanted) and sorted(each) == letters]
    if len(swapped) == 1:  # also of two letters
        return names[swapped[0]]
    if slip := process.extractOne(wanted, known, scorer=OSA.distance, score_cutoff=slips):
        return names[slip[2]]
    ending = [at for at, each in enumerate(known) if parts and each.endswith(f"_{wanted}")]
    if len(ending) == 1:
        return names[ending[0]]
    alike = process.extractOne(wanted, known, scorer=JaroWinkler.normalized_similarity, score_cutoff=_ALIKE)
    if alike or not parts:
        return names[alike[2]] if alike else None
    holding = [at for at, each in enumerate(known) if wanted in each.split("_")]
    return names[holding[0]] if len(holding) == 1 else None


class Question(str):
    """The hint `did you mean X?`; `meant` is the text to write in the place of what is wrong."""

    meant: str


def did_you_mean(name: str, names: Iterable[str]) -> Question | None:
    """Return the hint of a fault, or None when nothing comes close."""
    found = closest(name, names)
    return question(found) if found else None


def question(meant: str, written: str = "") -> Question:
    """Return the hint that asks for what was probably meant; `written` is its form in the file, where that differs."""
    asked = Question(f"did you mean {meant}?")
    asked.meant = written or meant
    return asked


def _normalised(name: str) -> str:
    return name.upper().replace("-", "_")
