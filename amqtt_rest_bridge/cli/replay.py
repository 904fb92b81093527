"""`rest-bridge replay`: publish the messages of failures again. Main thread."""

import base64
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from amqtt_rest_bridge.cli import read_bytes
from amqtt_rest_bridge.cli.status import DEFAULT_BROKER
from amqtt_rest_bridge.errors import ConfigurationError, visible
from amqtt_rest_bridge.language import forms
from amqtt_rest_bridge.language.forms import FormError
from amqtt_rest_bridge.model import Publication
from amqtt_rest_bridge.topics import check_topic_filter, check_topic_name

DESCRIPTION = """\
Publish the messages of failures again, after what made them fail has been mended.

The failures are those of events with FAILURE_PAYLOAD "true". They come from a file with one failure payload a line, as
a subscriber has written them (amqtt_sub -t alerts/failed >> failures.jsonl), or from a topic filter: then those that
come within --seconds are taken. It shows how many messages it would publish on which topics, and asks before it does.

A message is published on the topic that it came from, so every subscriber and every route there gets it again.
"""
EPILOG = """\
exit status:
  0  published, or there was nothing to publish
  1  the broker cannot be reached, or the answer was no
  2  a file cannot be read, or the command is used wrongly

examples:
  rest-bridge replay --from failures.jsonl
  rest-bridge replay --from alerts/failed --seconds 60 --rate 5/s --yes
"""


def _pace(text: str) -> float:
    try:
        return forms.read_rate(text)
    except FormError as error:
        raise typer.BadParameter(f"{error.message}; {error.hint}") from error


def run(
    source: Annotated[str, typer.Option("--from", metavar="FILTER|FILE", help="file with failures, or topic filter")],
    broker: Annotated[
        str, typer.Option(metavar="URL", help="mqtt://, mqtts://, ws:// or wss://[USER:PASSWORD@]HOST[:PORT]")
    ] = DEFAULT_BROKER,
    rate: Annotated[float, typer.Option(metavar="RATE", parser=_pace, help="messages at most")] = "10/s",  # type: ignore[assignment]
    seconds: Annotated[float, typer.Option(metavar="N", min=0.1, help="how long to listen on a topic filter")] = 5.0,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> int:
    """Read the failures, ask, and publish their messages."""
    from amqtt_rest_bridge.broker import replay_client, status_client  # amqtt takes a second to import

    address = status_client.parse_address(broker)
    try:
        if Path(source).is_file():
            payloads: Iterable[bytes] = filter(bytes.strip, read_bytes(Path(source)).splitlines())
        elif reason := check_topic_filter(source):
            raise ConfigurationError(f"--from {source!r} is not a file, and as a topic filter it {reason}")
        else:
            print(f"{source} is not a file: listening {seconds:g} s on that topic filter", file=sys.stderr)
            payloads = replay_client.collect(address, source, seconds)
        publications, without = messages_of(payloads)
        print(_summary(publications, without))
        if not publications:
            return 0
        if not yes and not typer.confirm(f"Publish {len(publications)} message(s) to {address.shown}?"):
            return 1
        replay_client.publish(address, publications, rate)
    except status_client.BrokerUnavailableError as error:
        print(f"rest-bridge replay: {error}", file=sys.stderr)
        return 1
    print(f"published {len(publications)} message(s)")
    return 0


def messages_of(payloads: Iterable[bytes]) -> tuple[list[Publication], int]:
    """Return the messages of failure payloads, and how many payloads hold none that can be published."""
    publications: list[Publication] = []
    without = 0
    for payload in payloads:
        try:
            publications.append(_message_of(json.loads(payload)))
        except (ValueError, KeyError, TypeError, RecursionError):
            without += 1
    return publications, without


def _message_of(failure: Any) -> Publication:
    topic, payload, encoding = failure["source_topic"], failure["payload"], failure["payload_encoding"]
    if check_topic_name(topic) or topic.startswith("$"):  # a broker refuses those; the schedule runs its own again
        raise ValueError(topic)
    if not isinstance(payload, str) or encoding not in ("utf-8", "base64"):
        raise ValueError(encoding)
    return Publication(topic, payload.encode() if encoding == "utf-8" else base64.b64decode(payload, validate=True))


def _summary(publications: Sequence[Publication], without: int) -> str:
    lines = [f"{count:>7} on {visible(topic)}" for topic, count in Counter(one.topic for one in publications).items()]
    if without:
        lines.append(f"{without:>7} without a message: not a failure, without FAILURE_PAYLOAD, or of a schedule")
    return "\n".join(lines) or "no failures"


