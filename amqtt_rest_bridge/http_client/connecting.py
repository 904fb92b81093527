"""New connections: names resolved, addresses dialled, tunnels through proxies opened, TLS handshakes done.

Client workers run it, and everything ends at the deadline of the request that needs the connection. getaddrinfo cannot
be interrupted: it runs on a thread of its own, one for each name however many workers wait for it, so that a dead name
server holds no worker beyond its deadline and never more than one thread for each name.
"""

import errno
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from urllib3.util.connection import create_connection  # urllib3-future, which may have its place, has it too

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.http.origin import Origin, Proxy
from amqtt_rest_bridge.http_client import transport_errors
from amqtt_rest_bridge.http_client.connection import DeadlineSocket, Outgoing, Pool, answered
from amqtt_rest_bridge.http_client.tls import TlsContexts, TlsOptions
from amqtt_rest_bridge.http_client.transport_errors import EXCHANGE_ERRORS
from amqtt_rest_bridge.masking import credentials_of
from amqtt_rest_bridge.model import Pairs

# Decision: an address that does not answer delays those after it no longer than this (the idea of RFC 8305).
_PATIENCE: Final = 3.0  # seconds
_SOCKET_OPTIONS: list[tuple[int, int, int | bytes]] = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
]

LookUp = Callable[[str, int], Sequence[str]]


class Server:
    """Where requests go: an origin, the proxy on the way there, the connections kept to it."""

    def __init__(self, origin: Origin, proxy: Proxy | None, clock: Callable[[], float]) -> None:
        self.origin = origin
        self.proxy = proxy
        self.pool = Pool(clock)
        self.prefix = str(origin)
        self.is_tls = origin.scheme == "https"
        self.address = ""  # the one that connected last; tried first next time
        through = "" if proxy is None else f" through the proxy {proxy.origin.authority}"
        self.where = self.prefix + through
        self.forwarded = proxy is not None and not self.is_tls
        self.proxy_headers: Pairs = ()
        if proxy is not None and proxy.authorization is not None:
            self.proxy_headers = (("Proxy-Authorization", proxy.authorization),)
        self.credentials = credentials_of(self.proxy_headers) if self.forwarded else frozenset()


class Connector:
    """Open connections for one client.

    `seconds` is the client's timeout, for messages. Every deadline is a time of `clock`.
    """

    def __init__(
        self,
        tls: TlsOptions,
        contexts: TlsContexts,
        resolver: "Resolver",
        *,
        seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._tls = tls
        self._contexts = contexts
        self._resolver = resolver
        self._seconds = seconds
        self._clock = clock
        self._context: ssl.SSLContext | None = None  # of the last new connection

    def connect(self, server: Server, deadline: float) -> DeadlineSocket:
        """Open a connection to a server.

        Raises:
            CallError: `timeout`, `connection_failed` or `tls_failed`.
        """
        context = self._tls_context(server.where) if server.is_tls else None
        sock = self._dial(server, deadline)
        try:
            if context is not None:
                if server.proxy is not None:
                    self._open_tunnel(sock, server, deadline)
                sock = self._start_tls(sock, context, server, deadline)
        except BaseException:
            sock.close()
            raise
        return DeadlineSocket(sock, self._clock, deadline)

    def _tls_context(self, where: str) -> ssl.SSLContext:
        """Return the context for a new connection.

        Decision: while files that were in use cannot be used (gone, or being replaced), their last contents stay in
        use.
        """
        try:
            self._context = self._contexts.of(self._tls)
        except ConfigurationError as error:
            if self._context is None:
                raise transport_errors.files_unusable(where, error) from error
        return self._context

    def _dial(self, server: Server, deadline: float) -> socket.socket:
        """Connect to the first address of a server, or of the proxy before it, that accepts."""
        origin = server.origin if server.proxy is None else server.proxy.origin
        try:
            found = self._resolver.addresses(origin.host, origin.port, deadline - self._clock())
            addresses = sorted(found, key=lambda address: address != server.address)  # the one that worked goes first
            sock, server.address = self._dial_one_of(addresses, origin.port, deadline)
        except OSError as error:
            raise transport_errors.connecting_failed(server.where, error, self._seconds) from error
        return sock

    def _dial_one_of(self, addresses: Sequence[str], port: int, deadline: float) -> tuple[socket.socket, str]:
        error: OSError = socket.gaierror("the name has no address")
        for number, address in enumerate(addresses, 1):
            remaining = deadline - self._clock()
            if remaining <= 0:
                raise TimeoutError
            timeout = remaining if number == len(addresses) else min(remaining, _PATIENCE)
            try:
                return create_connection((address, port), timeout, socket_options=_SOCKET_OPTIONS), address
            except socket.gaierror:  # urllib3's answer to an IPv6 address on a system without IPv6
                if isinstance(error, socket.gaierror):
                    error = OSError(errno.EAFNOSUPPORT, "")
            except OSError as refused:
                error = refused
        raise error

    def _open_tunnel(self, sock: socket.socket, server: Server, deadline: float) -> None:
        """Open a tunnel to the server through the proxy (CONNECT, RFC 9110 section 9.3.6)."""
        authority = server.origin.endpoint
        wire, headers = DeadlineSocket(sock, self._clock, deadline), (("Host", authority), *server.proxy_headers)
        try:
            status = answered(wire, Outgoing(deadline, "CONNECT", authority, headers, None, 0)).status
        except OSError as error:
            raise transport_errors.connecting_failed(server.where, error, self._seconds) from error
        except EXCHANGE_ERRORS as error:
            raise transport_errors.proxy_failed(server.where, "with something that is not HTTP") from error
        if not 200 <= status < 300:
            raise transport_errors.proxy_failed(server.where, transport_errors.describe_status(status))
        if not wire.is_clean():
            raise transport_errors.proxy_failed(server.where, "with more than the opening of a tunnel")

    def _start_tls(
        self, sock: socket.socket, context: ssl.SSLContext, server: Server, deadline: float
    ) -> socket.socket:
        """Do the TLS handshake; the certificate is checked against the host name or address of the origin."""
        try:
            # The handshake as a whole is bounded by the socket's timeout.
            sock.settimeout(max(deadline - self._clock(), 0.001))
            name = server.origin.host.rstrip(".").partition("%")[0]
            # A body that ends with its connection is complete only behind close_notify (RFC 9112 section 9.8).
            return context.wrap_socket(sock, server_hostname=name, suppress_ragged_eofs=False)
        except TimeoutError as error:
            raise transport_errors.connecting_failed(server.where, error, self._seconds) from error
        except OSError as error:
            raise transport_errors.tls_failed(server.where, error) from error


class Resolver:
    """Resolve host names, for any thread; `look_up` blocks and raises OSError (default: the system's resolver)."""

    def __init__(self, look_up: LookUp | None = None) -> None:
        self._look_up = look_up or _getaddrinfo
        self._lock = threading.Lock()
        self._under_way: dict[tuple[str, int], Future[Sequence[str]]] = {}

    def addresses(self, host: str, port: int, timeout: float) -> Sequence[str]:
        """Return the addresses of a host in the system's order of preference; an address is its own.

        Raises:
            TimeoutError: the resolver did not answer within `timeout` seconds.
            OSError: the name cannot be resolved (`socket.gaierror`).
        """
        try:
            ipaddress.ip_address(host)
        except ValueError:
            pass
        else:
            return (host,)
        with self._lock:
            future = self._under_way.get((host, port))
            if future is None:
                future = Future()
                arguments = host, port, future
                try:
                    threading.Thread(target=self._run, args=arguments, name="bridge-resolver", daemon=True).start()
                except RuntimeError as error:  # the machine has no thread left; the next request asks again
                    raise OSError(errno.EAGAIN, str(error)) from error
                self._under_way[host, port] = future
        return future.result(timeout)

    def _run(self, host: str, port: int, future: "Future[Sequence[str]]") -> None:
        try:
            future.set_result(self._look_up(host, port))
        except (OSError, UnicodeError) as error:
            future.set_exception(error if isinstance(error, OSError) else OSError(str(error)))
        finally:
            with self._lock:
                del self._under_way[host, port]


def _getaddrinfo(host: str, port: int) -> tuple[str, ...]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))
