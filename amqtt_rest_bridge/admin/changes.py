"""The stream of what changes on the pages of a browser: rows of routes every two seconds, and calls. The loop alone."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from amqtt_rest_bridge.admin.figures import Figures
from amqtt_rest_bridge.admin.following import Follower, event
from amqtt_rest_bridge.admin.history import History
from amqtt_rest_bridge.admin.numbers import Numbers
from amqtt_rest_bridge.admin.pages import CHANGE_SECONDS
from amqtt_rest_bridge.admin.rows import Row, rows, summary


class Changes:
    """See `http.exchange.ResponseStream`.

    Args:
        figures: Of all routes.
        samples: Those of the last week.
        sections: Returns what the page of all routes shows beside its rows, as HTML by the id of its element.
        follower: Has the calls of the routes that the page shows.
    """

    def __init__(
        self,
        figures: Figures,
        samples: History,
        sections: Callable[[Numbers], dict[str, str]],
        follower: Follower,
    ) -> None:
        self._figures = figures
        self._samples = samples
        self._sections = sections
        self._follower = follower
        self._wake: Callable[[], None] = lambda: None
        self._known: dict[str, Row] = {}
        self._shown: dict[str, str] = {}
        self._sent = time.monotonic()
        self._gathering: asyncio.Task[Numbers] | None = None

    def begin(self, wake: Callable[[], None]) -> None:
        """Begin: `wake` has the next piece taken."""
        self._wake = wake
        self._follower.begin(wake)

    def take(self) -> bytes | float:
        """Return the rows that have changed, or calls, or the seconds after which to ask again."""
        if (changed := self._changed_rows()) is not None:
            return changed
        calls = self._follower.take()
        return calls if isinstance(calls, bytes) else min(calls, CHANGE_SECONDS)

    def close(self) -> None:
        """Cease to follow."""
        self._follower.close()
        if self._gathering is not None:
            self._gathering.cancel()

    def _changed_rows(self) -> bytes | None:
        gathering, now = self._gathering, time.monotonic()
        if gathering is not None:
            if not gathering.done() or gathering.cancelled():
                return None
            self._gathering, numbers = None, gathering.result()
            changed = self._changed(rows(numbers, self._samples), self._sections(numbers))
            if changed is None:
                return None
            self._sent = now
            return event("routes", changed)
        if now - self._sent >= CHANGE_SECONDS:
            self._sent = now
            self._gathering = asyncio.create_task(self._figures.now(statuses=True))
            self._gathering.add_done_callback(lambda _: self._wake())
        return None

    def _changed(self, present: list[Row], sections: dict[str, str]) -> dict[str, Any] | None:
        changed = [one for one in present if self._known.get(one["name"]) != one]
        if not changed and len(present) == len(self._known) and sections == self._shown:
            return None
        self._known, self._shown = {one["name"]: one for one in present}, sections
        names = [one["name"] for one in present]
        return {"summary": summary(present), "sections": sections, "names": names, "rows": changed}
