"""DEDUPE_KEY: which text a key is made of, and what follows when it was seen. Pure.

Whether a key was seen decides the broker process, for all bridge processes (`routing.claims`); a driver asks it between
the first time that a call is begun, which fills its key, and the second.
"""

import hashlib

from amqtt_rest_bridge.calls.call import OpenCall, SkippedError, Stage
from amqtt_rest_bridge.placeholders import MessageValues, PlaceholderText


def digest(route: str, event: str, text: bytes) -> bytes:
    """Return the key of a text: that of an event, which others do not share."""
    return hashlib.blake2b("\0".join((route, event, "")).encode() + text, digest_size=16).digest()


class Deduplicated(Stage):
    """DEDUPE_KEY: a call whose key was seen sends nothing."""

    def __init__(self, route: str, event: str, text: PlaceholderText) -> None:
        self._names = route, event
        self._text = text

    def admit(self, call: OpenCall, values: MessageValues) -> None:
        """Fill the key of a call; skip one whose key was seen."""
        call.key = digest(*self._names, self._text.fill_bytes(values))
        if call.was_seen:
            raise SkippedError
