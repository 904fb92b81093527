"""`rest-bridge try`: show what one message would send, or send it; or how a request would be answered. Main thread."""

import asyncio
import os
import sys
import time
import uuid
from collections.abc import Iterable
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer

from amqtt_rest_bridge.cli import SECRETS_DIR, Paths, SecretsDir, read_bytes, without_controls
from amqtt_rest_bridge.engine.client_mode import sender_of
from amqtt_rest_bridge.engine.event import Verdict
from amqtt_rest_bridge.engine.failures import masker_for
from amqtt_rest_bridge.engine.trial import ANY_KEY, MAX_BYTES, call_of, shown_request, try_request
from amqtt_rest_bridge.errors import CallError, ConfigurationError, FaultCode, Severity
from amqtt_rest_bridge.http.client import client_for
from amqtt_rest_bridge.http.exchange import Request
from amqtt_rest_bridge.lot import loader, sources
from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.masking import Masker
from amqtt_rest_bridge.lot.model import (
    ClientEvent,
    HttpRequest,
    HttpResponse,
    LoadResult,
    Message,
    MessageProperties,
    Publication,
    Route,
)
from amqtt_rest_bridge.spelling import closest
from amqtt_rest_bridge.times import LoopClock
from amqtt_rest_bridge.topics import check_topic_name, filter_matches

DESCRIPTION = """\
Show the exact requests that a message on a topic would send, for every client event of the routes that it triggers:
method, URL, headers and body, with credentials masked. Nothing is sent without --send; nothing is published.

With --request: show how server mode would answer a request, and what it would publish.
"""
EPILOG = """\
exit status:
  0  every request could be built (and, with --send, was answered with a status below 400), or WHEN skips the message
  1  the route files have errors, other than a variable or secret that only another route lacks; a request failed;
     or nothing is triggered: then the SOURCE_TOPICs are shown
  2  a path cannot be read, or the command is used wrongly

examples:
  rest-bridge try conf/routes --topic templates/search --payload webhook
  rest-bridge try conf/routes --topic sensors/7 --payload '{"temperature": 21.5}' --send
  rest-bridge try conf/routes --request 'POST /webhook?source=shop' --header 'X-Kind: order' --payload '{"id": 7}'
  rest-bridge try conf/routes --topic images/new --payload-file photo.jpg --property 'site: north'
"""


def run(
    paths: Paths,
    topic: Annotated[str | None, typer.Option(metavar="T", help="topic of the message")] = None,
    request: Annotated[
        str | None, typer.Option(metavar="'POST /PATH'", help="instead: a request of server mode")
    ] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="header of the request")] = None,
    user_property: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="'NAME: VALUE'", help="user property of the message (MQTT 5)"),
    ] = None,
    payload: Annotated[
        str | None, typer.Option(metavar="P", help="payload of the message or body of the request (default: empty)")
    ] = None,
    payload_file: Annotated[Path | None, typer.Option(metavar="FILE", help="file that holds the payload")] = None,
    send: Annotated[bool, typer.Option("--send", help="send the requests and show the responses")] = False,
    secrets_dir: SecretsDir = SECRETS_DIR,
) -> int:
    """Show, and with --send send, what a message triggers; faults of the route files go to standard error."""
    if payload is not None and payload_file is not None:
        raise typer.BadParameter("--payload and --payload-file cannot be used together")
    if (topic is None) == (request is None):
        raise typer.BadParameter("give either --topic or --request")
    # The bytes as they were typed, in any encoding of the terminal.
    body = os.fsencode(payload or "") if payload_file is None else read_bytes(payload_file)
    loaded = loader.load(sources.read(paths), Environment(os.environ, secrets_dir))
    for fault in loaded.faults:
        if fault.severity is not Severity.NOTICE:
            print(fault, file=sys.stderr)
    # Routes that lack a variable or a secret are left out.
    if any(fault.severity is Severity.ERROR and fault.code is not FaultCode.UNAVAILABLE for fault in loaded.faults):
        return 1
    if topic is None:
        return _show_request(loaded, request_of(request or "", header or (), body))
    if reason := check_topic_name(topic):
        raise ConfigurationError(f"--topic {topic!r} {reason}")
    user = tuple(_pair("--property", one) for one in user_property or ())
    message = Message(topic, body, time.time(), MessageProperties(user))
    events = [(route, event) for route in loaded.routes for event in route.client_events]
    triggered = [(route, event) for route, event in events if filter_matches(event.source_topic, topic)]
    if not triggered and loaded.has_errors:  # the message may be for a route that lacks something
        return 1
    if not triggered:
        filters = sorted({event.source_topic for _, event in events})
        near = closest(topic, alike := [_filled(one, topic) for one in filters])
        nearest = "" if near is None else f"the nearest SOURCE_TOPIC is {filters[alike.index(near)]}; "
        listed = ", ".join(filters) or "(nothing)"
        print(f"a message on {topic} triggers no client event; {nearest}the routes listen on: {listed}")
        return 1
    outcomes = [_show_call(route, event, message, send=send) for route, event in triggered]
    return 0 if all(outcomes) else 1


def _filled(topic_filter: str, topic: str) -> str:
    """Return a filter with the levels of a topic in place of its wildcards."""
    levels, sent = topic_filter.split("/"), topic.split("/")
    filled = [there if one == "+" else one for one, there in zip_longest(levels, sent[: len(levels)], fillvalue="")]
    if levels[-1] == "#":
        filled[-1:] = sent[len(levels) - 1 :]
    return "/".join(filled)


def request_of(line: str, headers: Iterable[str], body: bytes) -> Request:
    """Return the request that `--request` and `--header` describe; raises `ConfigurationError`."""
    method, _, path = line.partition(" ")
    if not path.startswith("/") or not method.isupper():
        raise ConfigurationError(f"--request {line!r} is not a method and a path, as in 'POST /hook?x=1'")
    fields = {name.lower(): value for name, value in (_pair("--header", one) for one in headers)}
    return Request(str(uuid.uuid4()), method, path, path.partition("?")[2], fields, body)


def _pair(option: str, text: str) -> tuple[str, str]:
    """Return name and value of a header or user property."""
    name, colon, value = text.partition(":")
    if not colon:
        raise ConfigurationError(f"{option} {text!r} has no colon, as in 'X-Key: value'")
    return name.strip(), value.strip()


def _show_request(loaded: LoadResult, request: Request) -> int:
    """Print the answer to a request and what it would publish; return the exit status."""
    routes = loaded.routes
    masker = Masker(
        (secret for route in routes for secret in route.secrets),
        (value for route in routes for value in route.in_addresses),
    )
    tried = try_request(routes, request, now=time.time())
    if tried.route is None and loaded.has_errors:  # the request may be for a route that lacks something
        return 1
    if tried.run.event is not None:
        print(f"# route {tried.route}, event {tried.run.event.name}: {tried.run.label}")
    print(masker.text(tried.response.status))
    _print_headers_and_body(tried.response.headers, tried.response.body, masker)
    for publication in tried.publications:
        print(f"# would be published on {_delivery(publication.topic, publication, masker)}:")
        print(_body_text(publication.payload, masker))
    if not tried.publications:
        print("# nothing would be published")
    return 0 if tried.response.status < "400" else 1


def _show_call(route: Route, event: ClientEvent, message: Message, *, send: bool) -> bool:
    """Print one event's request and its outcome; return whether it succeeded."""
    print(f"# route {route.name}, event {event.name} ({route.path}:{route.position.line})")
    key = (str(uuid.uuid4()) if send else ANY_KEY) if route.is_lossless else None  # the Idempotency-Key
    call = call_of(route, event, message, key=key)
    masker, verdict = call.event.masker, call.event.build(call)
    if verdict is not None or call.request is None:
        return _show_end(verdict or call.event.fail_unexpectedly(call), masker)
    sent = call.request
    request = shown_request(route, sent)
    print(f"{request.method} {masker.address(request.url)}")
    _print_headers_and_body(request.headers, request.body or b"", masker)
    if not send:
        goes_to = call.destination or (event.destination_topic.source if event.destination_topic else None)
        print(f"# nothing was sent; the response would go to {_delivery(goes_to, event, masker)}\n")
        return True
    try:
        response = asyncio.run(_send(route, sent))
    except CallError as failure:
        return _show_end(call.event.judge(call, failure), masker_for(masker, sent, None))
    masker = masker_for(masker, sent, response)
    print(f"{response.status} {without_controls(masker.text(response.reason))}")
    _print_headers_and_body(response.headers, response.body, masker)
    return _show_end(call.event.judge(call, response), masker, response)


async def _send(route: Route, request: HttpRequest) -> HttpResponse:
    """Send one request as the route does, over a connection of its own."""
    connect = partial(client_for, max_response_bytes=MAX_BYTES, environment=os.environ)
    sender = sender_of(route.config, connect, LoopClock())
    try:
        return await sender.send(request)
    finally:
        sender.close()


def _show_end(verdict: Verdict, masker: Masker, response: HttpResponse | None = None) -> bool:
    """Print how a call ended; return whether it succeeded."""
    failure, result = verdict.failure, verdict.publication
    goes_to = _delivery(result.topic if result else None, result, masker)
    if failure is not None:
        print(f"# fails with {failure.code}: {masker.address(failure.message)}")
        print(f"# hint: {failure.hint}\n# the failure would go to {goes_to}\n")
        return False
    if response is None:
        print(f"# skipped: {masker.text('' if verdict.skipped is None else verdict.skipped[1])}\n")
        return True
    print(f"# {response.elapsed * 1000:.0f} ms; the broker would publish this to {goes_to}")
    if result and result.payload != response.body:  # PAYLOAD or RESPONSE_FORMAT has shaped it
        print(f"# as:\n{_body_text(result.payload, masker)}")
    print()
    return True


def _delivery(topic: str | None, like: Publication | ClientEvent | None, masker: Masker) -> str:
    """Return on which topic something would be published, with retain and QoS if they are set."""
    if topic is None or like is None:
        return "no topic"
    quality = "" if like.qos is None else f", with QoS {like.qos} at most"
    return f"{masker.text(topic)}{', retained' if like.retain else ''}{quality}"


def _print_headers_and_body(headers: tuple[tuple[str, str], ...], body: bytes, masker: Masker) -> None:
    """Print headers and body as they are sent, or as they came and were decoded; secrets are masked in every form."""
    for name, value in headers:
        print(f"{masker.text(name)}: {without_controls(masker.header(name, value))}")
    print()
    if body:
        print(f"{_body_text(body, masker)}\n")


def _body_text(body: bytes, masker: Masker) -> str:
    """Return a body as text with secrets masked, or how many bytes it has if it is not text."""
    try:
        text = masker.body(body, shown=True).decode()
    except UnicodeDecodeError:
        return f"({len(body)} bytes that are not text)"
    if "\0" in text:
        return f"({len(body)} bytes that are not text)"
    return "".join([char if char in "\n\t" or char.isprintable() else "\ufffd" for char in text])
