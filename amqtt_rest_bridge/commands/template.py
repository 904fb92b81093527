"""The text that `-routeCode REST_API` answers: a first route, and every other setting as a comment. Pure."""

from typing import Final

from amqtt_rest_bridge.language.parameters import PARAMETERS, BlockKind

TYPE: Final = "REST_API"
_USED: Final = {
    BlockKind.CONFIG: {"ENABLE_CLIENT": '"true"', "BASE_ADDRESS": '"https://api.example.com"'},
    BlockKind.EVENT: {
        "SOURCE_TOPIC": '"sensors/+/temperature"',
        "DESTINATION_TOPIC": '"api/results"',
        "METHOD": '"POST"',
        "ENDPOINT": '"/readings"',
        "BODY": "'{\"reading\": {payload}}'",
    },
}
_HEADS: Final = {
    BlockKind.CONFIG: "    ADD REST_API_CONFIG",
    BlockKind.EVENT: "    ADD EVENT Send",
}


def template() -> str:
    """Return a definition that can be added as it is, once its address is put in."""
    lines = [f"DEFINE ROUTE RouteName WITH TYPE {TYPE}"]
    for kind, used in _USED.items():
        lines.append(_HEADS[kind])
        lines += [f"        WITH {name} {value}" for name, value in used.items()]
        lines += [f"        -- {name}: {row.meaning}" for name, row in PARAMETERS[kind].items() if name not in used]
    return "\n".join(lines) + "\n"
