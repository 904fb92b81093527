"""An HTTP/1.1 server with one door: `HttpServer(socket, app)` answers the requests of one port. Nothing of routes.

The idea. One thread a port does everything: it waits for sockets, parses, calls the application and sends. Handing each
request to a worker thread and back costs more than answering it. So the application must not block; an answer that
has to wait for something (a reply, room at the broker) is *pending*: it releases the thread and is resumed when it is
woken or its time is over. A thousand callers that wait cost memory, not threads. An answer may also be a *stream*: its
next piece is taken once the one before has left.

The threads. Everything runs on the port's thread, except what is marked otherwise: `HttpServer`'s methods and the
`wake` of a pending answer may be called from any thread, and only leave work for the port's thread.

The measurement. Two shared cores, 16 connections, POST of 100 bytes: 51 us CPU a request with the application of
server mode; 62 when that was a Falcon application behind WSGI; one that does nothing on plain waitress with four
threads 121 (tests/benchmarks/http_server.py). 500 callers that read none of their replies of 36 kB: no thread, and
28 MB, 43 MB over TLS; 61 and 78 MB when each that waited held a thread.

What is waitress's (3.0.2): the parser of requests, the accepting socket, the trigger that wakes the loop.
What is ours, and why:

* `channel_loop` waits with epoll: waitress checks every connection at every turn for reading and writing, with
  1,000 idle ones more than a millisecond a turn.
* `request_parser` refuses what waitress accepts and two servers could read differently.
* `connection` takes the place of waitress's channel, which parses everything ahead, holds 16 MiB of unread answers and
  then waits for its peer on the thread that serves all; it adds TLS and limits on slow callers.
"""

from amqtt_rest_bridge.http.access_log import AccessLog
from amqtt_rest_bridge.http.exchange import Headers, Refusal, Response, Stream
from amqtt_rest_bridge.http_server.exchange import Application, Pending, Refuse, Request, path_of, takes_gzip
from amqtt_rest_bridge.http_server.server import HttpServer, Limits
from amqtt_rest_bridge.http_server.tls import TlsFiles

__all__ = [
    "AccessLog",
    "Application",
    "Headers",
    "HttpServer",
    "Limits",
    "Pending",
    "Refusal",
    "Refuse",
    "Request",
    "Response",
    "Stream",
    "TlsFiles",
    "path_of",
    "takes_gzip",
]
