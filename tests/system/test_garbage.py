"""What the garbage collector of a bridge looks at."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any

from amqtt_rest_bridge.bridge import Program


class Node:
    """Refers to itself, so that the collector alone can free it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_lives_until_the_next_reload_is_not_looked_at_and_what_the_last_one_left_is_freed() -> None:
    program: Any = SimpleNamespace(_owns_process=True)
    node = Node()
    Program._freeze_garbage(program)
    assert not any(one is node for one in gc.get_objects())
    left = weakref.ref(node)
    del node
    gc.collect()
    assert left() is not None
    Program._freeze_garbage(program)
    assert left() is None
