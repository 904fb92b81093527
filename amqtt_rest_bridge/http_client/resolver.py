"""Host names to addresses, with a bound on the time that the system's resolver does not know.

getaddrinfo cannot be interrupted. It runs on a thread of its own, one for each name at a time however many workers ask,
so that a dead name server can hold no worker beyond its deadline and no more than one thread for each name.
"""

import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

LookUp = Callable[[str, int], Sequence[str]]


class Resolver:
    """Look names up; may be shared by any number of threads. `look_up` blocks and raises OSError."""

    def __init__(self, look_up: LookUp | None = None) -> None:
        self._look_up = look_up or _getaddrinfo
        self._lock = threading.Lock()
        self._under_way: dict[tuple[str, int], Future[Sequence[str]]] = {}

    def addresses(self, host: str, port: int, timeout: float) -> Sequence[str]:
        """Give the addresses of a host in the system's order of preference; an address is its own.

        Raises:
            TimeoutError: the resolver did not answer within `timeout` seconds.
            OSError: the name cannot be resolved (`socket.gaierror`).
        """
        if _is_address(host):
            return (host,)
        with self._lock:
            future = self._under_way.get((host, port))
            if future is None:
                future = self._under_way[host, port] = Future()
                threading.Thread(
                    target=self._run, args=(host, port, future), name="bridge-resolver", daemon=True
                ).start()
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


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
