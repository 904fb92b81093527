"""Work that waits until its test lets it go on."""

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from tests.support.waiting import SECONDS

Question = TypeVar("Question")
Reply = TypeVar("Reply")


class Gate:
    """Closed until `open` is set; `entered` receives what came to it, in order."""

    def __init__(self) -> None:
        self.entered: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.open = threading.Event()
        self.patience: float | None = SECONDS

    def before(self, answer: Callable[[Question], Reply]) -> Callable[[Question], Reply]:
        """Return a function that notes its argument, waits until the gate is open, and answers."""

        def answer_when_open(question: Question) -> Reply:
            self.entered.put(question)
            self.open.wait(self.patience)
            return answer(question)

        return answer_when_open
