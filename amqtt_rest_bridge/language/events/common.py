"""What client and server events have in common: their mode, needed settings, texts, signatures. Pure."""

from amqtt_rest_bridge.language import forms
from amqtt_rest_bridge.language.parameters import PARAMETERS, Applies, BlockKind
from amqtt_rest_bridge.language.settings import TypedBlock
from amqtt_rest_bridge.language.templates import read_template
from amqtt_rest_bridge.model import RestApiConfig, Signature, SignatureScheme
from amqtt_rest_bridge.placeholders import Mode, Place, PlaceholderText


def mode_of(block: TypedBlock, config: RestApiConfig) -> Mode | None:
    """Return the mode in which an event runs, None when its route has neither."""
    if config.enable_client and config.enable_server:
        return Mode.CLIENT if "SOURCE_TOPIC" in block or "EVERY" in block else Mode.SERVER
    if config.enable_client:
        return Mode.CLIENT
    return Mode.SERVER if config.enable_server else None


def require(block: TypedBlock, mode: Mode, hints: dict[str, str | None]) -> bool:
    """Report what an event of a mode lacks, with its hint; return whether every setting is present and usable."""
    for name, hint in hints.items():
        if name not in block:
            block.report.error(block.block.offset, f"{name} is missing: a {mode} event needs it", hint)
    return all(name in block.values and name not in block.failed for name in hints)


def warn_of_unused(block: TypedBlock, mode: Mode) -> None:
    """Warn of settings that mean nothing in a mode."""
    for name, setting in block.block.settings.items():
        if setting.parameter.applies not in (Applies.BOTH, Applies(mode)):
            block.report.warning(setting.offset, f"{name} has no effect in {mode} mode")


def read_setting(block: TypedBlock, name: str, place: Place, mode: Mode) -> PlaceholderText | None:
    """Read a setting with placeholders; None when it is missing or at fault."""
    value = block.texts.get(name)
    if value is None or name in block.failed:
        return None
    template = read_template(name, value, place, mode, block.report)
    if template is None:
        block.failed.add(name)
    return template


def read_signature(block: TypedBlock) -> Signature | None:
    """Read SIGNATURE_SECRET, SIGNATURE_HEADER and SIGNATURE_SCHEME; None when bodies are not signed."""
    secret = block.values.get("SIGNATURE_SECRET")
    if secret is None:
        if "SIGNATURE_SECRET" not in block:
            if "SIGNATURE_HEADER" in block.values:
                block.warning("SIGNATURE_HEADER", "SIGNATURE_HEADER has no effect without SIGNATURE_SECRET")
            if "SIGNATURE_SCHEME" in block.values:
                # A fault, because an endpoint that is meant to check signatures would be open.
                message = "SIGNATURE_SCHEME checks nothing without SIGNATURE_SECRET"
                block.error("SIGNATURE_SCHEME", message, "add SIGNATURE_SECRET, or leave SIGNATURE_SCHEME out")
        return None
    if not secret:
        block.error("SIGNATURE_SECRET", "SIGNATURE_SECRET is empty", "such a signature proves nothing")
    default = PARAMETERS[BlockKind.EVENT]["SIGNATURE_HEADER"].default or ""
    scheme = SignatureScheme(block.values.get("SIGNATURE_SCHEME", SignatureScheme.HMAC))
    if scheme is not SignatureScheme.HMAC and "SIGNATURE_HEADER" in block.values:
        message = f"SIGNATURE_HEADER has no effect: SIGNATURE_SCHEME {scheme} has headers of its own"
        block.warning("SIGNATURE_HEADER", message)
    if scheme is SignatureScheme.STANDARD_WEBHOOKS and not forms.is_base64(secret.removeprefix("whsec_")):
        block.error("SIGNATURE_SECRET", "SIGNATURE_SECRET is not whsec_ and Base64, as standard-webhooks has it")
    return Signature(secret, block.values.get("SIGNATURE_HEADER", default), scheme)


def read_content_type(block: TypedBlock) -> str:
    """Read RESPONSE_CONTENT_TYPE: the type of what PAYLOAD makes of a response, or RESPONSE of a request."""
    name = "RESPONSE_CONTENT_TYPE"
    text: str = block.values.get(name, PARAMETERS[BlockKind.EVENT][name].default or "")
    if not forms.is_media_type(text):
        message = f'{name} "{block.texts[name].shown}" is not a media type'
        block.error(name, message, "as in application/json or text/plain; charset=utf-8")
    return text
