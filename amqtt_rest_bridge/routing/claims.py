"""Who works on a key of DEDUPE_KEY, and what came of it: one claim at a time, over all bridge processes. The loop only.

A claim is granted once the key is neither seen nor claimed by another request. Those that come meanwhile wait for the
end of the first: they get its answer or, where it has failed, the next claim. A claim ends with `settle`, or with the
bridge process that has it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

Tell = Callable[[bytes | None], None]
"""Called with the kept answer of a key that was seen, None for a claim that is granted."""


class KeyStore(Protocol):
    """The keys that were seen, and what was answered."""

    def answer(self, key: bytes) -> bytes | None:
        """Return the answer of a key, None for one that was not seen or too long ago."""
        ...

    def keep(self, key: bytes, seconds: float, answer: bytes) -> None:
        """Keep a key for so many seconds."""
        ...


@dataclass(slots=True, eq=False)
class _Claim:
    """A claim that has not ended; `owner` is the bridge process that has it, None once its message is the broker's."""

    owner: object | None
    waiting: deque[tuple[object, Tell]] = field(default_factory=deque)


class Claims:
    """The claims that have not ended; bounded by the requests of which each has one at most."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._open: dict[bytes, _Claim] = {}

    def claim(self, owner: object, key: bytes, tell: Tell) -> None:
        """Claim a key; `tell` is called now, or once the claim before it has ended."""
        claim = self._open.get(key)
        if claim is not None:
            claim.waiting.append((owner, tell))
            return
        answer = self._store.answer(key)
        if answer is None:
            self._open[key] = _Claim(owner)
        tell(answer)

    def hand_over(self, key: bytes) -> None:
        """Note that the message of a claim is the broker's: the end of the bridge process does not end the claim."""
        if (claim := self._open.get(key)) is not None:
            claim.owner = None

    def settle(self, key: bytes, seconds: float, answer: bytes | None) -> None:
        """End a claim: the key was seen and has this answer, or with None was not seen."""
        if answer is not None:
            self._store.keep(key, seconds, answer)
        claim = self._open.pop(key, None)
        if claim is None or not claim.waiting:
            return
        if answer is None:
            owner, tell = claim.waiting.popleft()
            self._open[key] = _Claim(owner, claim.waiting)
            tell(None)
            return
        for _, tell in claim.waiting:
            tell(answer)

    def gone(self, owner: object) -> None:
        """End the claims of a bridge process that has ended."""
        for key, claim in list(self._open.items()):
            claim.waiting = deque(one for one in claim.waiting if one[0] is not owner)
            if claim.owner is owner:
                self.settle(key, 0.0, None)
