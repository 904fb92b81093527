"""REST_API_CONFIG and ROUTE_CONFIG to the model, and the checks of settings that depend on each other."""

import re
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

from amqtt_rest_bridge.addresses import is_loopback
from amqtt_rest_bridge.errors import FaultCode
from amqtt_rest_bridge.lot import forms
from amqtt_rest_bridge.lot.evaluation import BlockSettings, Value
from amqtt_rest_bridge.lot.forms import FormError
from amqtt_rest_bridge.lot.masking import is_credential
from amqtt_rest_bridge.lot.model import AuthScheme, RestApiConfig, RouteConfig
from amqtt_rest_bridge.lot.placeholders import Fixed, Mode
from amqtt_rest_bridge.lot.texts import warn_of_dot_segments

_USER_INFO = re.compile(r"(?<=//)[^/@]*@|^[^/@]*@")
_BASIC = (("USERNAME", "PASSWORD"), ("SERVER_USERNAME", "SERVER_PASSWORD"))


def read_config(settings: BlockSettings) -> RestApiConfig:
    """Check the settings of REST_API_CONFIG; return a config even if it has faults, so that events can be checked."""
    client, server = _is_on(settings, "ENABLE_CLIENT"), _is_on(settings, "ENABLE_SERVER")
    _check_address(settings, needed=client and settings.has("ENABLE_CLIENT"))
    settings.secrets.update(settings.values.get("SERVER_TOKEN", ()))
    _check_credentials(settings, client=client, server=server)
    _check_oauth2(settings)
    if settings.values.get("IGNORE_CERT_ERRORS"):
        message = "IGNORE_CERT_ERRORS is true: machines on the way can read and change what is sent"
        settings.warning(
            FaultCode.INSECURE, "IGNORE_CERT_ERRORS", message, "set CA_FILE to trust a certificate of your own"
        )
    modes = [mode for mode, is_on in ((Mode.CLIENT, client), (Mode.SERVER, server)) if is_on]
    settings.check_rules(modes)
    return settings.build(RestApiConfig, enable_client=client, enable_server=server)


def read_route_config(settings: BlockSettings) -> RouteConfig:
    """Return the capacity and policy of a route, the defaults for what is missing or at fault."""
    settings.check_rules([Mode.CLIENT])
    return settings.build(RouteConfig)


def _is_on(settings: BlockSettings, name: str) -> bool:
    """Return whether a mode is on; one whose setting is at fault was hardly meant to be off, unless it says so."""
    if name not in settings.failed:
        return bool(settings.values.get(name, False))
    setting = settings.block.settings.get(name)
    return setting is None or setting.pieces[0].text.strip("'\"").lower() not in ("no", "off", "0", "")


def _check_address(settings: BlockSettings, *, needed: bool) -> None:
    name = "BASE_ADDRESS"
    if name not in settings and needed:
        hint = 'as in WITH BASE_ADDRESS "https://api.example.com"'
        settings.report.error(
            FaultCode.MISSING, settings.block.offset, "BASE_ADDRESS is missing: ENABLE_CLIENT is true", hint
        )
    elif name in settings.values:
        try:
            use_ssl = bool(settings.values.get("USE_SSL", False))
            address = settings.values[name] = forms.read_address(settings.values[name].strip(), use_ssl=use_ssl)
            warn_of_dot_segments(name, address, settings.offset(name), settings.report)
        except FormError as refused:
            _refuse_url(settings, name, refused)


def _refuse_url(settings: BlockSettings, name: str, refused: FormError) -> None:
    shown = _USER_INFO.sub("***@", settings.texts[name].shown)
    settings.invalid(name, f'"{shown}" {refused.message}', refused.hint)


def _check_credentials(settings: BlockSettings, *, client: bool, server: bool) -> None:
    for name in (name for pair in _BASIC for name in pair if name in settings.texts):
        if forms.has_control(settings.texts[name].text):
            settings.invalid(name, "holds a control character, which a header cannot carry")
    for user, _ in _BASIC:
        if ":" in settings.values.get(user, ""):  # RFC 7617 section 2
            settings.invalid(user, "holds a colon, which ends the user name in Basic credentials")
    asks = {"SERVER_USERNAME", "SERVER_TOKEN"} & settings.values.keys()
    if client and server and settings.has("USERNAME") and not asks:
        hint = "set SERVER_USERNAME and SERVER_PASSWORD to ask them"
        message = "USERNAME is sent with requests, but callers of server mode are not asked for it"
        settings.warning(FaultCode.DOUBTFUL, "USERNAME", message, hint)
    _check_empty(settings, ("SERVER_USERNAME", "SERVER_PASSWORD", *(() if client else _BASIC[0])))


def _check_empty(settings: BlockSettings, asked: tuple[str, ...]) -> None:
    """Refuse credentials that are empty by mistake.

    Decision: a PASSWORD that is written as "" is sent, as some APIs want it; callers can be asked for no empty one.
    """
    for name in (*_BASIC[0], *_BASIC[1], "AUTHORIZATION"):
        if name in settings.failed or name not in settings.texts or settings.texts[name].text:
            continue
        label = next((part.label for part in settings.texts[name].parts if isinstance(part, Fixed)), None)
        if label is not None:
            settings.invalid(name, f"is empty: {label} holds nothing", "put a value into it")
        elif name in asked:
            settings.invalid(name, "is empty", "it would admit callers without a password")


def _check_oauth2(settings: BlockSettings) -> None:
    url: str | None = settings.values.get("OAUTH2_TOKEN_URL")
    if url is None:
        return
    try:
        forms.check_url(url)
    except FormError as refused:
        _refuse_url(settings, "OAUTH2_TOKEN_URL", refused)
        return
    if _is_cleartext(url):
        message = "OAUTH2_TOKEN_URL is plain http: anyone on the way can read the client's secret"
        settings.warning(FaultCode.INSECURE, "OAUTH2_TOKEN_URL", message, "write https://")


def warn_of_cleartext(settings: BlockSettings, events: Iterable[BlockSettings]) -> None:
    """Warn of credentials that are sent over plain http to another machine."""
    address: str = settings.values.get("BASE_ADDRESS", "")  # with the scheme that USE_SSL sets
    is_faulty = "BASE_ADDRESS" in settings.failed or not _is_on(settings, "ENABLE_CLIENT")
    if is_faulty or not _is_cleartext(address):
        return
    reason, hint = "anyone on the way can read it", "write https:// in BASE_ADDRESS"
    if "://" not in settings.texts["BASE_ADDRESS"].text:
        reason = "BASE_ADDRESS has no scheme and USE_SSL is not true"
        hint = "write https:// before the address or set USE_SSL"
    for name, value in _credentials(settings, events):
        settings.report.warning(FaultCode.INSECURE, value.offset, f"{name} is sent over plain http: {reason}", hint)


def _is_cleartext(url: str) -> bool:
    """Return whether others can read what is sent to a URL, whose host may not be checked yet."""
    return url.startswith("http://") and not is_loopback(urlsplit(url).hostname or "")


def _credentials(settings: BlockSettings, events: Iterable[BlockSettings]) -> Iterator[tuple[str, Value]]:
    """Yield what requests of a route carry as credentials: by its name, or because a secret is in it."""
    digest = settings.values.get("AUTH_SCHEME") == AuthScheme.DIGEST  # which the password cannot be read from
    for name in ("AUTHORIZATION", "USERNAME", "OAUTH2_CLIENT_SECRET"):
        if name in settings.texts and not (digest and name == "USERNAME"):
            yield "the access token" if name == "OAUTH2_CLIENT_SECRET" else name, settings.texts[name]
    for event in events:
        for header, value in event.headers:
            if is_credential(header.text) or value.secrets:
                yield f"the header {header.shown}", value
        endpoint, body = event.texts.get("ENDPOINT"), event.texts.get("BODY")
        if endpoint is not None:
            query = re.split("[?&]", endpoint.text)[1:]
            if endpoint.secrets or any(is_credential(item.partition("=")[0]) for item in query):
                yield "a credential in ENDPOINT", endpoint
        if body is not None and body.secrets:
            yield "a secret in BODY", body
