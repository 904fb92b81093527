"""SIGNATURE_SECRET: a signature by which the server can check who sent the body."""

import hashlib
import hmac

from msgspec.structs import replace

from amqtt_rest_bridge.engine.event import Call, Stage
from amqtt_rest_bridge.lot.model import HttpRequest, Signature


class SignatureStage(Stage):
    """Adds the HMAC-SHA256 of the body as a header."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature

    def before_sending(self, _: Call, request: HttpRequest) -> HttpRequest:
        """Add the signature."""
        digest = hmac.new(self._signature.secret.encode(), request.body or b"", hashlib.sha256).hexdigest()
        return replace(request, headers=(*request.headers, (self._signature.header, f"sha256={digest}")))
