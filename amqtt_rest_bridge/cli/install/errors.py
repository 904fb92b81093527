"""Why a template is not installed. Only exceptions live here."""

from amqtt_rest_bridge.errors import HintedError


class InstallError(HintedError):
    """A template cannot be installed; nothing has been written."""
