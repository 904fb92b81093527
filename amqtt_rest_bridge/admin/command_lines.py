"""A run as lines for a shell: what it sent with curl, and its message with `rest-bridge try`. Pure; any thread.

Each value is quoted, so that what a message holds is a word and nothing else; control characters, by which a pasted
text could end the paste, are escaped as bash and zsh read them. NUL is in no word of a line: there is no line for what
holds it. Secrets were masked before: to send the line, fill them in.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from amqtt_rest_bridge.model import Route

_CURL_OWN: Final = frozenset({"host", "content-length", "accept-encoding", "user-agent", "connection"})
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def curl_line(run: Mapping[str, Any], route: Route | None) -> str | None:
    """Return the request of a run as a line of curl, None where none was sent or its body is not shown whole.

    One of server mode has no host: it is sent to the port of its route on this machine.
    """
    request = run["request"]
    if not request or request.get("is_cut") or request.get("body_encoding") == "base64":
        return None
    url = request["url"]
    if url.startswith("/"):
        if route is None:
            return None
        url = f"http://127.0.0.1:{route.config.server_port}{url}"
    words = ["curl", "-i", "-g", "-X", request["method"], url]
    for name, value in request["headers"]:
        if name.lower() not in _CURL_OWN:
            words += ["-H", f"{name}: {value}" if value else f"{name};"]  # `NAME:` would leave the header out
    if request.get("body"):
        words += ["--data-raw", request["body"]]
    return _line(words)


def try_line(run: Mapping[str, Any], route: Route | None) -> str | None:
    """Return the message of a run for `rest-bridge try`, None of a request and of one that is not shown whole."""
    message = run["message"]
    if route is None or not message or "path" in run or message["payload"] is None or message["is_cut"]:
        return None
    if message["payload_encoding"] == "base64":
        return None
    options = {"--topic": message["topic"], "--payload": message["payload"]}
    return _line(["rest-bridge", "try", route.path, *(word for pair in options.items() for word in pair)])


def _line(words: Sequence[str]) -> str | None:
    return None if any("\0" in word for word in words) else " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    if _CONTROL.search(word) is None:
        return shlex.quote(word)
    text = word.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _CONTROL.sub(lambda found: "".join(f"\\x{byte:02x}" for byte in found[0].encode()), text) + "'"
