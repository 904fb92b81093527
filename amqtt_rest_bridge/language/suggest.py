"""Did-you-mean for names; the bridge's only use of rapidfuzz. Runs only when there is a fault to explain."""

from collections.abc import Iterable

from rapidfuzz import process
from rapidfuzz.distance import OSA


def closest(name: str, names: Iterable[str]) -> str | None:
    """Give the name that was probably meant, or None; case and the difference of - and _ do not matter.

    A typing mistake (one letter wrong, missing, too many or swapped with its neighbour) is allowed per three letters.
    """
    found = process.extractOne(
        name, list(names), scorer=OSA.distance, processor=_normalised, score_cutoff=max(1, len(name) // 3)
    )
    return found[0] if found else None


def did_you_mean(name: str, names: Iterable[str]) -> str | None:
    """Make the hint of a fault, or None when nothing comes close."""
    found = closest(name, names)
    return f"did you mean {found}?" if found else None


def _normalised(name: str) -> str:
    return name.upper().replace("-", "_")
