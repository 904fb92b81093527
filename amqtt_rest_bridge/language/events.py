"""What reading client and server events has in common: needed settings, unused ones, templates, signatures."""

from amqtt_rest_bridge.language.parameters import PARAMETERS, Applies, BlockKind
from amqtt_rest_bridge.language.templates import read_template
from amqtt_rest_bridge.language.typed import TypedBlock
from amqtt_rest_bridge.model import RestApiConfig, Signature
from amqtt_rest_bridge.placeholders import Mode, Place, PlaceholderText


def mode_of(block: TypedBlock, config: RestApiConfig) -> Mode | None:
    """Tell in which mode an event runs; None when its route has neither."""
    if config.enable_client and config.enable_server:
        return Mode.CLIENT if "SOURCE_TOPIC" in block else Mode.SERVER
    if config.enable_client:
        return Mode.CLIENT
    return Mode.SERVER if config.enable_server else None


def require(block: TypedBlock, mode: Mode, hints: dict[str, str | None]) -> bool:
    """Report what an event of a mode lacks, with its hint; tell whether every setting is there and usable."""
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
    """Read SIGNATURE_SECRET and SIGNATURE_HEADER; None when bodies are not signed."""
    secret = block.values.get("SIGNATURE_SECRET")
    if secret is None:
        if "SIGNATURE_HEADER" in block.values and "SIGNATURE_SECRET" not in block:
            block.warning("SIGNATURE_HEADER", "SIGNATURE_HEADER has no effect without SIGNATURE_SECRET")
        return None
    if not secret:
        block.error("SIGNATURE_SECRET", "SIGNATURE_SECRET is empty", "anyone could sign with it")
    default = PARAMETERS[BlockKind.EVENT]["SIGNATURE_HEADER"].default or ""
    return Signature(secret, block.values.get("SIGNATURE_HEADER", default))
