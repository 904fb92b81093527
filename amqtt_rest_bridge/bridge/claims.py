"""Claims on keys of DEDUPE_KEY, seen from the bridge process: the broker process grants them. Any thread.

`routing.claims` decides; what it has decided comes with a frame, on the reader of the link.
"""

import itertools
import threading
from collections.abc import Callable

from amqtt_rest_bridge.link.frames import Claim, Settle, ToBroker


class KeyClaim:
    """A claim; `answer` is the kept one of a key that was seen, None for a claim that is granted."""

    def __init__(self, key: bytes, claims: "KeyClaims", wake: Callable[[], None]) -> None:
        self.key = key
        self.is_answered = False
        self.answer: bytes | None = None
        self._claims = claims
        self._wake = wake
        self._is_abandoned = False
        self._lock = threading.Lock()

    def arrive(self, answer: bytes | None) -> None:
        """Note the broker's answer; a claim that is granted when nothing waits for it any more ends."""
        with self._lock:
            self.is_answered, self.answer = True, answer
            is_late = self._is_abandoned and answer is None
        if is_late:
            self._claims.settle(self.key, 0.0, None)
        self._wake()

    def abandon(self) -> None:
        """End a claim that nothing waits for any more: now, or once it is granted."""
        with self._lock:
            self._is_abandoned = True
            is_granted = self.is_answered and self.answer is None
        if is_granted:
            self._claims.settle(self.key, 0.0, None)


class KeyClaims:
    """Ask for claims, and end them; `send` sends a frame after all that came before it."""

    def __init__(self, send: Callable[[ToBroker], None]) -> None:
        self._send = send
        self._numbers = itertools.count(1)
        self._asked: dict[int, Callable[[bytes | None], None]] = {}

    def claim(self, key: bytes, wake: Callable[[], None]) -> KeyClaim:
        """Claim a key; `wake` is called, on the reader, once the answer has come."""
        claim = KeyClaim(key, self, wake)
        self.ask(key, claim.arrive)
        return claim

    def ask(self, key: bytes, arrive: Callable[[bytes | None], None]) -> None:
        """Claim a key; `arrive` is called, on the reader, with the kept answer, or None for a claim that is granted."""
        number = next(self._numbers)
        self._asked[number] = arrive
        self._send(Claim(number, key))

    def answered(self, number: int, answer: bytes | None) -> None:
        """Pass on what became of a claim."""
        self._asked.pop(number)(answer)

    def settle(self, key: bytes, seconds: float, answer: bytes | None) -> None:
        """End a claim that was granted: the key was seen and has this answer, or with None was not seen."""
        self._send(Settle(key, seconds, answer))
