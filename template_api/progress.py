"""What an import tells its operator: a bar on a terminal, and a line for each warning and fault."""

from typing import TextIO

from template_api.sources.reading import Reading

_WIDTH = 30


class Progress:
    """Write to a stream, normally standard error; the bar only where that is a terminal."""

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        self._stream = stream
        self._bar = stream.isatty() and not quiet
        self._drawn = ""

    def show(self, reading: Reading) -> None:
        """Tell of one template that was read."""
        if reading.warnings or reading.faults:
            self._erase()
            for warning in reading.warnings:
                print(warning, file=self._stream)
            for fault in reading.faults:
                print(f"{fault.where}: error: {fault.reason}", file=self._stream)
        if self._bar:
            self._draw(reading.done / reading.total if reading.total else 1.0)

    def end(self) -> None:
        """Take the bar away."""
        self._erase()

    def _draw(self, share: float) -> None:
        filled = int(share * _WIDTH)
        bar = f"\rimporting [{'#' * filled}{'.' * (_WIDTH - filled)}] {share:4.0%}"
        if bar != self._drawn:  # a terminal is slow: write only what changes the picture
            self._stream.write(bar)
            self._stream.flush()
            self._drawn = bar

    def _erase(self) -> None:
        if self._drawn:
            self._stream.write("\r" + " " * len(self._drawn) + "\r")
            self._stream.flush()
            self._drawn = ""
