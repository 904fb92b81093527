"""Why a template is not installed. Only exceptions live here."""

from amqtt_rest_bridge.errors import BridgeError


class InstallError(BridgeError):
    """A template cannot be installed; nothing has been written. `hint` is what to do next."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint
