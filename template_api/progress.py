"""What an import reports to its operator: a bar on a terminal, and a line for each warning and fault. Main thread."""

from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar

from template_api.sources import Reading


class Progress:
    """Write to a stream, normally standard error; the bar only where that is a terminal. A context manager.

    Args:
        stream: where to write.
        quiet: never draw the bar.
    """

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        # Plain text: paths and keys may read as rich's markup, and a line that is wrapped cannot be searched for.
        self._console = Console(file=stream, markup=False, highlight=False, emoji=False, soft_wrap=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
        shown = stream.isatty() and not quiet
        self._bar = Bar(*columns, console=self._console, transient=True, disable=not shown)
        self._task = self._bar.add_task("importing", total=None)

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._bar.stop()

    def show_waiting(self) -> None:
        """Report that another import runs, which this one waits for."""
        self._console.print("another import into this library is running; waiting until it has ended")

    def show(self, reading: Reading) -> None:
        """Report one template that was read."""
        for warning in reading.warnings:
            self._console.print(warning)
        for fault in reading.faults:
            self._console.print(f"{fault.where}: error: {fault.reason}")
        if not self._bar.disable:
            self._bar.update(self._task, completed=reading.done, total=reading.total)
