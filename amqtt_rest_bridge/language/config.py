"""The REST_API_CONFIG and ROUTE_CONFIG blocks to the model, and the checks of settings that depend on each other."""

import re
from collections.abc import Iterable, Iterator

from amqtt_rest_bridge.language import forms
from amqtt_rest_bridge.language.evaluation import Value
from amqtt_rest_bridge.language.forms import FormError
from amqtt_rest_bridge.language.settings import TypedBlock, warn_of_dot_segments
from amqtt_rest_bridge.masking import is_credential
from amqtt_rest_bridge.model import OverloadPolicy, RestApiConfig, RouteConfig
from amqtt_rest_bridge.placeholders import Fixed

_LOOPBACK = re.compile(r"http://(?:localhost|127\.[0-9.]+|\[::1\])(?:[:/]|\Z)")
_USER_INFO = re.compile(r"(?<=//)[^/@]*@|^[^/@]*@")


def read_config(block: TypedBlock) -> RestApiConfig:
    """Check the settings of REST_API_CONFIG; return a config even if it has faults, so that events can be checked."""
    client, server = _is_on(block, "ENABLE_CLIENT"), _is_on(block, "ENABLE_SERVER")
    _check_address(block, needed=client and block.has("ENABLE_CLIENT"))
    _check_texts(block)
    _check_credentials(block, client=client, server=server)
    _check_empty(block, client=client)
    _check_oauth2(block, client=client)
    _check_tls(block)
    _check_server(block, server=server)
    return RestApiConfig(**block.members_of(RestApiConfig) | {"enable_client": client, "enable_server": server})


def warn_of_cleartext(block: TypedBlock, events: Iterable[TypedBlock]) -> None:
    """Warn of credentials that are sent over plain http to another machine."""
    address: str = block.values.get("BASE_ADDRESS", "")  # with the scheme that USE_SSL sets
    is_faulty = "BASE_ADDRESS" in block.failed or not _is_on(block, "ENABLE_CLIENT")
    if is_faulty or not address.startswith("http://") or _LOOPBACK.match(address):
        return
    reason, hint = "anyone on the way can read it", "write https:// in BASE_ADDRESS"
    if "://" not in block.texts["BASE_ADDRESS"].text:
        reason = "BASE_ADDRESS has no scheme and USE_SSL is not true"
        hint = "write https:// before the address or set USE_SSL"
    for name, value in _credentials(block, events):
        block.report.warning(value.offset, f"{name} is sent over plain http: {reason}", hint)


def _credentials(block: TypedBlock, events: Iterable[TypedBlock]) -> Iterator[tuple[str, Value]]:
    """Yield what requests of a route carry as credentials: by its name, or because a secret is in it."""
    names = ("AUTHORIZATION", "USERNAME", "OAUTH2_CLIENT_SECRET")
    said = {"OAUTH2_CLIENT_SECRET": "the access token"}
    yield from ((said.get(name, name), block.texts[name]) for name in names if name in block.texts)
    for event in events:
        for name, value in event.headers:
            if is_credential(name.text) or value.secrets:
                yield f"the header {name.shown}", value
        endpoint = event.texts.get("ENDPOINT")
        if endpoint is not None:
            query = re.split("[?&]", endpoint.text)[1:]
            if endpoint.secrets or any(is_credential(item.partition("=")[0]) for item in query):
                yield "a credential in ENDPOINT", endpoint
        if "BODY" in event.texts and event.texts["BODY"].secrets:
            yield "a secret in BODY", event.texts["BODY"]


def _is_on(block: TypedBlock, name: str) -> bool:
    """Return whether a mode is on; one whose setting is at fault was hardly meant to be off, unless it says so."""
    if name not in block.failed:
        return bool(block.values.get(name, False))
    setting = block.block.settings.get(name)
    return setting is None or setting.pieces[0].text.strip("'\"").lower() not in ("no", "off", "0", "")


def read_route_config(block: TypedBlock) -> RouteConfig:
    """Return the capacity and policy of a route, the defaults for what is missing or at fault."""
    policy = block.values.get("OVERLOAD_POLICY", OverloadPolicy.BALANCED)
    if policy is not OverloadPolicy.BALANCED and block.has("OVERLOAD_TIMEOUT"):
        message = f"OVERLOAD_TIMEOUT has no effect: OVERLOAD_POLICY is {policy}"
        block.warning("OVERLOAD_TIMEOUT", message, "only balanced waits for room")
    return RouteConfig(**block.members_of(RouteConfig))


def _check_address(block: TypedBlock, *, needed: bool) -> None:
    name = "BASE_ADDRESS"
    if name not in block:
        if needed:
            hint = 'as in WITH BASE_ADDRESS "https://api.example.com"'
            block.report.error(block.block.offset, "BASE_ADDRESS is missing: ENABLE_CLIENT is true", hint)
        return
    if name in block.values:
        try:
            use_ssl = bool(block.values.get("USE_SSL", False))
            block.values[name] = forms.read_address(block.values[name].strip(), use_ssl=use_ssl)
            warn_of_dot_segments(name, block.values[name], block.offset(name), block.report)
        except FormError as refused:
            _refuse_url(block, name, refused)


def _refuse_url(block: TypedBlock, name: str, refused: FormError) -> None:
    shown = _USER_INFO.sub("***@", block.texts[name].shown)
    block.error(name, f'{name} "{shown}" {refused.message}', refused.hint)


def _check_texts(block: TypedBlock) -> None:
    block.check_media_type("DEFAULT_CONTENT_TYPE")
    for name in ("USERNAME", "PASSWORD", "SERVER_USERNAME", "SERVER_PASSWORD"):
        if name in block.texts and forms.has_control(block.texts[name].text):
            block.error(name, f"{name} holds a control character, which a header cannot carry")
    block.secrets.update(block.values.get("SERVER_TOKEN", ()))
    for name in ("USERNAME", "SERVER_USERNAME"):
        if ":" in block.values.get(name, ""):  # RFC 7617 section 2
            block.error(name, f"{name} holds a colon, which ends the user name in Basic credentials")


def _check_credentials(block: TypedBlock, *, client: bool, server: bool) -> None:
    for user, password in (("USERNAME", "PASSWORD"), ("SERVER_USERNAME", "SERVER_PASSWORD")):
        block.refuse_lone(user, password, "Basic credentials are made of both")
        block.refuse_lone(password, user, "Basic credentials are made of both")
    if block.has("AUTHORIZATION") and block.has("USERNAME") and client:
        message = "AUTHORIZATION and USERNAME are both set"
        block.error("AUTHORIZATION", message, "a request has one Authorization header")
    if client and server and block.has("USERNAME") and not {"SERVER_USERNAME", "SERVER_TOKEN"} & set(block.values):
        hint = "set SERVER_USERNAME and SERVER_PASSWORD to ask them"
        message = "USERNAME is sent with requests, but callers of server mode are not asked for it"
        block.warning("USERNAME", message, hint)


def _check_empty(block: TypedBlock, *, client: bool) -> None:
    """Refuse credentials that are empty by mistake.

    Decision: a PASSWORD that is written as "" is sent, as some APIs want it; callers can be asked for no empty one.
    """
    asked = {"SERVER_USERNAME", "SERVER_PASSWORD"} | (set() if client else {"USERNAME", "PASSWORD"})
    for name in ("USERNAME", "PASSWORD", "SERVER_USERNAME", "SERVER_PASSWORD", "AUTHORIZATION"):
        if name in block.failed or name not in block.texts or block.texts[name].text:
            continue
        labels = [part.label for part in block.texts[name].parts if isinstance(part, Fixed)]
        if labels:
            block.error(name, f"{name} is empty: {labels[0]} holds nothing", "put a value into it")
        elif name in asked:
            block.error(name, f"{name} is empty", "it would admit callers without a password")


_OAUTH2 = ("OAUTH2_TOKEN_URL", "OAUTH2_CLIENT_ID", "OAUTH2_CLIENT_SECRET", "OAUTH2_SCOPE", "OAUTH2_AUDIENCE")


def _check_oauth2(block: TypedBlock, *, client: bool) -> None:
    given = [name for name in _OAUTH2 if block.has(name)]
    if not given:
        return
    for name in _OAUTH2[:3]:
        block.refuse_lone(given[0], name, "the grant needs address, id and secret")
    for name in filter(block.has, ("AUTHORIZATION", "USERNAME") if client else ()):
        block.error(given[0], f"{given[0]} and {name} are both set", "a request has one Authorization header")
    if "OAUTH2_TOKEN_URL" in block.values:
        _check_token_url(block, block.values["OAUTH2_TOKEN_URL"])


def _check_token_url(block: TypedBlock, url: str) -> None:
    try:
        forms.check_url(url)
    except FormError as refused:
        _refuse_url(block, "OAUTH2_TOKEN_URL", refused)
        return
    if url.startswith("http://") and not _LOOPBACK.match(url):
        message = "OAUTH2_TOKEN_URL is plain http: anyone on the way can read the client's secret"
        block.warning("OAUTH2_TOKEN_URL", message, "write https://")


def _check_tls(block: TypedBlock) -> None:
    if block.values.get("IGNORE_CERT_ERRORS"):
        message = "IGNORE_CERT_ERRORS is true: machines on the way can read and change what is sent"
        block.warning("IGNORE_CERT_ERRORS", message, "set CA_FILE to trust a certificate of your own")
    block.refuse_lone("CLIENT_KEY_FILE", "CLIENT_CERT_FILE")


def _check_server(block: TypedBlock, *, server: bool) -> None:
    block.refuse_lone("SERVER_TOKEN_HEADER", "SERVER_TOKEN")
    if not server:
        for name in ("ENABLE_CORS", "SERVER_USERNAME", "SERVER_TOKEN"):
            if block.values.get(name):
                block.warning(name, f"{name} has no effect: ENABLE_SERVER is not true")
    elif "CORS_ORIGINS" in block.values and not block.values.get("ENABLE_CORS"):
        block.warning("CORS_ORIGINS", "CORS_ORIGINS has no effect: ENABLE_CORS is not true")
