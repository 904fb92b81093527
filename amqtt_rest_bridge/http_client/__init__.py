"""HTTP/1.1 out, behind one door: `HttpClient(options).send(request) -> response`. Nothing of routes.

**Idea.** A client is for one server and keeps the connections to it. urllib3 dials, http.client reads bodies;
its pools and its connection class are not used. A connection is a `DeadlineSocket`, which bounds the time and the bytes
of a call as a whole (a socket's own timeout starts again with every byte, and http.client has no bound on bytes), and
`FinalResponse` reads heads strictly. A request over a kept connection that its server has just closed is repeated over
a new one where RFC 9112 section 9.3.1 allows it; every other failure is one `CallError` with the next thing to check.
Its texts name the settings of a route (BASE_ADDRESS, CA_FILE), since those are what its readers can change.

**Threads.** `send` blocks, and any number of client workers may call it at once; only the pool of idle connections and
the cache of TLS contexts are shared, each under a lock. Host names are resolved on threads of their own.

**Measured** (`tests/benchmarks/http_client.py`, microseconds of CPU a call over a kept connection): half of urllib3's
pools. In client mode end to end: 3,000-4,800 messages/s against 2,100-2,300, and 113 against 402 us a message in the
bridge process.

Read `client` (the way of a request), `connection` (one exchange) and `connecting`; then `content`, `tls`, `origin` and
`transport_errors` as needed. Other packages import from here only.
"""

from amqtt_rest_bridge.http.origin import Origin, origin_of, printable
from amqtt_rest_bridge.http_client.client import ClientOptions, Exchange, HttpClient, Login, Stopwatch, finish
from amqtt_rest_bridge.http_client.connecting import Resolver
from amqtt_rest_bridge.http_client.tls import TlsContexts, TlsOptions, check_files
from amqtt_rest_bridge.http_client.transport_errors import describe_status, redirect_refused

__all__ = [
    "ClientOptions",
    "Exchange",
    "HttpClient",
    "Login",
    "Origin",
    "Resolver",
    "Stopwatch",
    "TlsContexts",
    "TlsOptions",
    "check_files",
    "describe_status",
    "finish",
    "origin_of",
    "printable",
    "redirect_refused",
]
