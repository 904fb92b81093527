"""SCHEMA_FILE: a message whose payload does not match fails."""

from amqtt_rest_bridge.catalogue import SCHEMA_FAULTS
from amqtt_rest_bridge.engine.event import Call, Stage
from amqtt_rest_bridge.lot.placeholders.text import MessageValues
from amqtt_rest_bridge.lot.schemas import Schema, checker_of


class SchemaStage(Stage):
    """Fails calls whose payload does not match a schema."""

    def __init__(self, schema: Schema) -> None:
        self._check = checker_of(schema)

    def enter(self, call: Call, _: MessageValues) -> None:
        """Fail the call if its payload does not match the schema."""
        if faults := self._check(call.message.payload):
            message = f"the payload does not match SCHEMA_FILE: {'; '.join(faults)}"
            raise SCHEMA_FAULTS.error(message, unsent=True)
