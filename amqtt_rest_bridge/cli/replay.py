"""`rest-bridge replay`: publish the messages of failures again. Main thread."""

import asyncio
import base64
import json
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from amqtt_rest_bridge.cli import CaFile, CertFile, KeyFile, agrees, broker_client, read_bytes, several
from amqtt_rest_bridge.cli.admin_client import Admin, AdminClient
from amqtt_rest_bridge.cli.broker_client import BROKER_HELP, DEFAULT_BROKER, Broker, broker_address
from amqtt_rest_bridge.cli.failures import kept_failures
from amqtt_rest_bridge.engine.needs import Outcome
from amqtt_rest_bridge.errors import ConfigurationError, visible
from amqtt_rest_bridge.lot import forms
from amqtt_rest_bridge.lot.forms import FormError
from amqtt_rest_bridge.lot.model import MessageProperties, Publication
from amqtt_rest_bridge.mqtt.private import TIME
from amqtt_rest_bridge.settings import ADMIN_VARIABLE
from amqtt_rest_bridge.topics import check_topic_filter, check_topic_name

_MOST_NAMED = 20
_LARGEST_FILE = 1 << 30  # bytes; it is read whole

DESCRIPTION = f"""\
Publish the messages of failures again, after what made them fail has been mended.

The failures are those of events with FAILURE_PAYLOAD "true". They come from a file with one failure payload a line,
as a subscriber has written them (amqtt_sub -t alerts/failed >> failures.jsonl), or from a topic filter: then those
that come within --seconds are taken. It shows how many messages it would publish on which topics, and asks (y/N)
before it does.

A message is published on the topic that it came from, so every subscriber and every route there gets it again. Its
{{timestamp}} stays that of the original message.
Lines of a file that are not JSON, or whose message is damaged, are named; the others are published. With --admin (or
REST_BRIDGE_ADMIN), those that the bridge knows to have been sent again with success are left out, and counted.

{BROKER_HELP}"""
EPILOG = """\
exit status:
  0  published, or there was nothing to publish
  1  the broker or bridge cannot be reached, the answer was no, or lines of the file cannot be read
  2  a file cannot be read, or the command is used wrongly

examples:
  rest-bridge replay --from failures.jsonl
  rest-bridge replay --from alerts/failed --seconds 60 --rate 5/s --yes
"""


def run(
    source: Annotated[str, typer.Option("--from", metavar="FILTER|FILE", help="file with failures, or topic filter")],
    broker: Broker = DEFAULT_BROKER,
    admin: Admin = None,
    ca_file: CaFile = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    rate: Annotated[str, typer.Option(metavar="RATE", help="messages at most")] = "10/s",
    seconds: Annotated[float, typer.Option(metavar="N", min=0.1, help="how long to listen on a topic filter")] = 5.0,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> int:
    """Read the failures, ask, and publish their messages; return the exit status."""
    try:
        pause = forms.read_rate(rate)
    except FormError as error:
        raise typer.BadParameter(f"{error.message}; {error.hint}", param_hint="'--rate'") from error
    address = broker_address(broker or DEFAULT_BROKER, ca_file, cert_file, key_file)
    if _is_meant_as_file(source):
        payloads = read_bytes(Path(source), _LARGEST_FILE).split(b"\n")
        found = read_failures(payloads, _succeeded_runs(admin, ca_file, cert_file, key_file))
    elif reason := check_topic_filter(source):
        raise ConfigurationError(f"--from {source!r} is not a file, and as a topic filter it {reason}")
    else:
        print(f"{source} is not a file: listening {seconds:g} s on that topic filter", file=sys.stderr)
        found = read_failures(asyncio.run(broker_client.collect(address, source, seconds)))
        # A topic may carry any messages, such as results beside failures. A line of a file is damaged or cut off.
        found.without_message += len(found.damaged)
        found.damaged.clear()
    topics = Counter(one.topic for one in found.publications)
    lines = [f"{count:>7} on {visible(topic)}" for topic, count in topics.items()]
    if found.damaged:
        named = several([str(line) for line in found.damaged], _MOST_NAMED)
        lines.append(f"{len(found.damaged):>7} cannot be read: damaged or cut off, line {named}")
    if found.without_message:
        lines.append(
            f"{found.without_message:>7} without a message: not a failure, without FAILURE_PAYLOAD, or of a schedule"
        )
    if found.succeeded:
        lines.append(f"{found.succeeded:>7} left out: sent again before, and succeeded")
    print("\n".join(lines) or "no failures")
    publications = found.publications
    question = f"Publish {len(publications)} message(s) to {address.shown}?"
    if publications and not yes and not agrees(question):
        return 1
    if publications:
        asyncio.run(broker_client.publish(address, publications, pause))
        print(f"published {len(publications)} message(s)")
    return 1 if found.damaged else 0


def _is_meant_as_file(source: str) -> bool:
    """Return whether a source is a file, or looks like the path of one: for a wrong path no topic is listened to."""
    folder = os.path.dirname(source) if source.startswith(("/", "./", "../")) else ""  # noqa: PTH120
    # The methods of Path raise for a name that is too long.
    is_in_folder = folder not in ("", "/") and os.path.isdir(folder)  # noqa: PTH112
    return is_in_folder or source.endswith(".jsonl") or os.path.isfile(source)  # noqa: PTH113


def _succeeded_runs(admin: str | None, *tls_files: str | None) -> set[str]:
    """Return the kept failures whose messages were sent again and succeeded; none if no bridge is named."""
    address = admin or os.environ.get(ADMIN_VARIABLE)
    if not address:
        known = f"name the bridge with --admin or {ADMIN_VARIABLE}"
        print(f"messages that were already sent again with success are sent once more: {known}", file=sys.stderr)
        return set()
    with closing(AdminClient(admin, *(tls_files if address.startswith("https:") else ()))) as client:
        kept = kept_failures(client, {})
    return {str(run["id"]) for run in kept if run.get("retry_outcome") == Outcome.SUCCEEDED}


@dataclass(slots=True)
class FoundMessages:
    """The messages of failure payloads, and what became of the other payloads.

    `without_message` counts payloads that have no message. `damaged` are the numbers, from 1, of those that cannot be
    read. `succeeded` counts messages that are left out: they were sent again before, and succeeded.
    """

    publications: list[Publication] = field(default_factory=list)
    without_message: int = 0
    damaged: list[int] = field(default_factory=list)
    succeeded: int = 0


class _DamagedError(ValueError):
    """A failure payload, or the message in it, cannot be read."""


def read_failures(payloads: Iterable[bytes], succeeded: Collection[str] = ()) -> FoundMessages:
    """Read failure payloads, without the messages of the runs `succeeded`."""
    found = FoundMessages()
    for number, payload in enumerate(payloads, start=1):
        if not payload.strip():
            continue
        try:
            run, publication = _message_of(payload)
            if run in succeeded:
                found.succeeded += 1
            else:
                found.publications.append(publication)
        except _DamagedError:
            found.damaged.append(number)
        except (ValueError, KeyError, TypeError):
            found.without_message += 1
    return found


def _message_of(text: bytes) -> tuple[str, Publication]:
    """Return run and message of a failure payload; raises `_DamagedError`, or another error if it has no message."""
    try:
        failure: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _DamagedError(str(error)) from error
    topic, payload, encoding = failure["source_topic"], failure["payload"], failure["payload_encoding"]
    if check_topic_name(topic) or topic.startswith("$"):  # brokers refuse both; a schedule repeats by itself
        raise ValueError(topic)
    if not isinstance(payload, str) or encoding not in ("utf-8", "base64"):
        raise _DamagedError(encoding)
    try:
        content = payload.encode() if encoding == "utf-8" else base64.b64decode(payload, validate=True)
    except ValueError as error:
        raise _DamagedError(str(error)) from error
    properties = None
    with suppress(ValueError, OverflowError):  # else it is not known when the broker first received the message
        first = datetime.fromisoformat(str(failure.get("timestamp"))).timestamp()
        properties = MessageProperties(((TIME, repr(first)),))
    return str(failure.get("id")), Publication(topic, content, properties=properties)
