"""A server that sends credentials back in every form in which servers, gateways and debugging pages write them."""

import html
import json
from base64 import b64encode, encodebytes, urlsafe_b64encode
from urllib.parse import quote

from tests.support.http_target import Peer, Seen, reply


def escaped(text: str) -> list[str]:
    """Return a text as the encoders of other languages write it; what holds several lines as one."""
    decimal = "".join([char if char.isalnum() and char.isascii() else f"&#{ord(char)};" for char in text])
    named = html.escape(text, quote=False)
    return [
        json.dumps(text, ensure_ascii=False)[1:-1].replace(">", "\\u003e").replace("&", "\\u0026"),  # Go
        json.dumps(text)[1:-1].replace("/", "\\/"),  # PHP
        "".join([char if char.isalnum() and char.isascii() else f"\\u{ord(char):04X}" for char in text]),  # .NET
        json.dumps(json.dumps(text)[1:-1])[1:-1],
        repr(text.encode())[2:-1],
        "".join([f"%{byte:02X}" for byte in text.encode()]),
        quote(text, safe="~!*'()"),  # encodeURIComponent
        quote(text, safe="~!*'();:@&=+$,/?#"),  # encodeURI
        quote(quote(text, safe=""), safe=""),
        decimal,
        named.replace('"', "&#34;").replace("'", "&#39;"),  # Go
        named.replace('"', "&quot;").replace("'", "&apos;"),
        html.escape(named),
        text.upper(),
        text.encode().decode("latin-1"),
        ":".join([f"{byte:02x}" for byte in text.encode()]),
        json.dumps(encodebytes(4 * text.encode()).decode())[1:-1],
    ]


def converse(peer: Peer) -> None:
    """Answer requests: with what came, or by their path with credentials, 404, or what is not text."""
    while (seen := peer.request()) is not None:
        if "echo" in seen.path:
            _send_back(peer, seen)
            continue
        answer = b'you sent "%s"\n\x1b[31mred' % seen.body
        if "binary" in seen.path:
            answer = answer.decode().encode("utf-16-le" if "utf-16" in seen.path else "utf-16")
        key = seen.headers.get("Idempotency-Key", "none")
        status = "404 Not Found" if "missing" in seen.path else "200 OK"
        peer.send(reply(answer, status, "Set-Cookie: session=1", f"X-Seen: {key}"))


def _send_back(peer: Peer, seen: Seen) -> None:
    """Answer with credentials in the forms that servers, gateways and debugging pages use."""
    basic, secret = seen.headers["Authorization"], json.loads(seen.body)["key"]
    lines = [basic, basic.split()[1], quote(basic), json.dumps({"a": basic})]
    lines += ["pass word", "pass+word", "pass%20word"]
    lines += [secret, quote(secret), quote(secret).lower(), json.dumps(secret), html.escape(secret)]
    lines += [secret.encode().hex(), secret.encode().hex().upper()]
    lines += ["token abc", seen.headers["X-Token"].encode().hex(), *escaped(secret)]
    for before in range(3):
        for after in range(3):
            data = b"x" * before + secret.encode() + b"y" * after
            lines += [b64encode(data).decode(), urlsafe_b64encode(data).decode(), quote(b64encode(data), safe="")]
    answer = "\n".join(f"[{line}]" for line in lines).encode()
    head = [
        f"HTTP/1.1 200 OK {b64encode(secret.encode()).decode()} {quote(secret)} {json.dumps(secret)}",
        f"X-Echo: {b64encode(b'operator:pass word').decode()}",
        f"X-Raw: {secret}",
        f"X-Folded: {json.dumps(basic)}\r\n and\r\n\t{quote(secret)}",
        "Transfer-Encoding: chunked",
    ]
    peer.send("\r\n".join([*head, "", ""]).encode())
    for start in range(0, len(answer), 7):
        piece = answer[start : start + 7]
        peer.send(b"%x\r\n%b\r\n" % (len(piece), piece))
    peer.send(b"0\r\n\r\n")
