"""The most frequent of any number of keys, in bounded memory. Pure.

Space-saving (Metwally, Agrawal, El Abbadi, 2005): a key for which there is no room takes the place of the one with the
least count, and that count. So of N that were counted a key with more than N / `size` is never missed, whatever comes
between, and at most `excess` of its count may be another's.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True, eq=False)
class Frequent(Generic[K]):
    """Counts of `size` keys at most."""

    size: int
    _counts: dict[K, tuple[int, int]] = field(default_factory=dict)  # each with its excess, negative

    def add(self, key: K, count: int = 1, excess: int = 0) -> K | None:
        """Count a key; return the one that it took the place of, if it did."""
        known, left = self._counts.get(key), None
        if known is None:
            known = 0, 0
            if len(self._counts) >= self.size:
                left = min(self._counts, key=self._counts.__getitem__)  # of several the one with the most excess
                least, _ = self._counts.pop(left)
                known = least, -least
        self._counts[key] = known[0] + count, known[1] - excess
        return left

    def counts(self) -> list[tuple[K, int, int]]:
        """Return the keys with count and excess."""
        return [(key, count, -excess) for key, (count, excess) in self._counts.items()]

    def most(self, number: int) -> list[tuple[K, int]]:
        """Return so many keys with what surely is their own count, the most frequent first."""
        own = [(key, count + excess) for key, (count, excess) in self._counts.items()]
        return sorted(own, key=itemgetter(1), reverse=True)[:number]
