"""A server that sends credentials back in every form in which servers, gateways and debugging pages write them."""

import html
import json
from base64 import b64encode, encodebytes, urlsafe_b64encode
from http.server import BaseHTTPRequestHandler
from urllib.parse import quote


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


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "echo" in self.path:
            self._send_back(body)
            return
        self.send_response(404 if "missing" in self.path else 200)
        answer = b'you sent "%s"\n\x1b[31mred' % body
        if "binary" in self.path:
            answer = answer.decode().encode("utf-16-le" if "utf-16" in self.path else "utf-16")
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("Set-Cookie", "session=1")
        self.send_header("X-Seen", self.headers["Idempotency-Key"] or "none")
        self.end_headers()
        self.wfile.write(answer)

    def _send_back(self, body: bytes) -> None:
        """Answer with credentials in the forms that servers, gateways and debugging pages use."""
        basic, secret = self.headers["Authorization"], json.loads(body)["key"]
        lines = [basic, basic.split()[1], quote(basic), json.dumps({"a": basic})]
        lines += ["pass word", "pass+word", "pass%20word"]
        lines += [secret, quote(secret), quote(secret).lower(), json.dumps(secret), html.escape(secret)]
        lines += [secret.encode().hex(), secret.encode().hex().upper()]
        lines += ["token abc", self.headers["X-Token"].encode().hex(), *escaped(secret)]
        for before in range(3):
            for after in range(3):
                data = b"x" * before + secret.encode() + b"y" * after
                lines += [b64encode(data).decode(), urlsafe_b64encode(data).decode(), quote(b64encode(data), safe="")]
        answer = "\n".join(f"[{line}]" for line in lines).encode()
        self.send_response(200, f"OK {b64encode(secret.encode()).decode()} {quote(secret)} {json.dumps(secret)}")
        self.send_header("X-Echo", b64encode(b"operator:pass word").decode())
        self.send_header("X-Raw", secret.encode().decode("latin-1"))
        self.send_header("X-Folded", json.dumps(basic) + "\r\n and\r\n\t" + quote(secret))
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for start in range(0, len(answer), 7):
            piece = answer[start : start + 7]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's own name for it
        pass
