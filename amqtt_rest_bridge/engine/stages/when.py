"""WHEN: a message for which the condition is false sends nothing."""

from amqtt_rest_bridge.engine.event import Call, SkippedError, Stage
from amqtt_rest_bridge.lot.masking import Masker
from amqtt_rest_bridge.lot.placeholders.conditions import Condition, is_true, why_false
from amqtt_rest_bridge.lot.placeholders.text import MessageValues


class WhenStage(Stage):
    """Skips calls for which a condition is false."""

    def __init__(self, condition: Condition, masker: Masker) -> None:
        self._condition = condition
        self._mask = masker.value

    def enter(self, _: Call, values: MessageValues) -> None:
        """Skip the call, unless its condition is true."""
        if not is_true(self._condition, values):
            raise SkippedError(*why_false(self._condition, values, self._mask))
