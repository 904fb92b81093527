"""A stream on its way to a caller: one piece after the other, each once the one before has left. The port's thread."""

from collections.abc import Callable

from amqtt_rest_bridge.http_server.application import Stream
from amqtt_rest_bridge.http_server.channel_loop import Timer
from amqtt_rest_bridge.http_server.output import Output


class StreamSender:
    """Send a stream.

    Args:
        stream: Where the pieces come from.
        output: Where they go.
        later: Calls an action after so many seconds.
        resume: Has `send` called; the action of the timers.
    """

    def __init__(
        self,
        stream: Stream,
        output: Output,
        later: Callable[[float, Callable[[], None]], Timer],
        resume: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._output = output
        self._later = later
        self._resume = resume
        self._timer: Timer | None = None

    def send(self) -> bool:
        """Send the next piece, if there is one and room for it; return False at the end of the stream.

        One piece a turn, so that other connections get theirs. Raises `OSError` when the connection is broken.
        """
        if self._output:
            return True
        self._cancel_timer()
        piece, seconds = self._stream.take(), 0.0
        if piece == b"":
            return False
        if isinstance(piece, bytes):
            self._output.send(piece)
        else:
            seconds = piece
        if not self._output:
            self._timer = self._later(seconds, self._resume)
        return True

    def close(self) -> None:
        """Release the stream."""
        self._cancel_timer()
        self._stream.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
