"""ORDERED, and ON_CHANGE: calls of one topic run one after the other, in their order of arrival."""

from collections import deque

from amqtt_rest_bridge.engine.event import Batch, Call


class Order:
    """The lines of a route. In each line the first call may run, and the others wait behind it."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[Call]] = {}  # by name; none is empty

    def enter(self, call: Call) -> bool:
        """Put a call into its line; return whether it may run now. If not, a later `leave` returns it.

        The batches of an event share one line; other calls have a line for each topic.
        """
        call.line = name = f"{call.event.event.name}\0{'' if isinstance(call, Batch) else call.message.topic}"
        line = self._lines.get(name)
        if line is not None:
            line.append(call)
            return False
        self._lines[name] = deque((call,))
        return True

    def enter_next(self, call: Call) -> None:
        """Put a call into its line, next after the one that may run."""
        self._lines[call.line or ""].insert(1, call)

    def leave(self, call: Call) -> Call | None:
        """Remove a call that has ended from its line. If it was the first one, return the one that may run now."""
        line = self._lines.get(call.line or "")
        if line is None or line[0] is not call:  # an ended call behind the first is removed when it becomes the first
            return None
        line.popleft()
        while line and line[0].has_ended:
            line.popleft()
        if line:
            return line[0]
        del self._lines[call.line or ""]
        return None
