"""What an import did: values only."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """Say what an import did with one template."""

    ADDED = "added"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class Report:
    """Count the outcomes of an import; `pruned` is False when pruning was asked for but something failed."""

    counts: Mapping[Outcome, int]
    pruned: bool

    @property
    def failed(self) -> int:
        """How many templates could not be imported."""
        return self.counts[Outcome.FAILED]

    def __str__(self) -> str:
        return ", ".join(f"{self.counts[each]} {each}" for each in Outcome if each != "hidden" or self.counts[each])
