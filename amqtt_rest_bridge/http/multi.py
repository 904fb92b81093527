"""libcurl on the event loop: its sockets are watched and its timer is set as it asks for.

pycurl's `AsyncCurlMulti` does the same, but a message takes a seventh more of the bridge's processor time with it: it
sets the timer two times a request, has the loop itself watch each socket, and does not tell which responses need an
acknowledgement, so that all had one.
"""

import asyncio
import selectors
import socket
from contextlib import suppress
from math import inf
from typing import Any, Final

import pycurl

_MOST_CONNECTIONS: Final = 1024
_QUICK_ACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)  # Linux has it

Fault = tuple[int, str]
"""An error of libcurl: its code and its text."""


class Transfers:
    """Runs handles of libcurl on the running event loop, and keeps the connections for later ones."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._multi.setopt(pycurl.M_MAXCONNECTS, _MOST_CONNECTIONS)
        self._running: dict[pycurl.Curl, asyncio.Future[Fault | None]] = {}
        self._sockets = selectors.DefaultSelector()  # the loop watches it, and it watches all sockets of libcurl
        self._loop.add_reader(self._sockets, self._serve)
        self._due = inf  # when libcurl wants to be called, by the clock of the loop
        self._fires = inf  # when it will be: then, or earlier
        self._timer: asyncio.Handle | None = None

    @property
    def are_idle(self) -> bool:
        """Return whether none runs."""
        return not self._running

    async def run(self, easy: pycurl.Curl) -> Fault | None:
        """Run a handle to its end; return None, or its error."""
        ended: asyncio.Future[Fault | None] = self._loop.create_future()
        self._running[easy] = ended
        self._multi.add_handle(easy)  # it begins in the next iteration of the loop, by the timer
        try:
            return await ended
        finally:
            if self._running.pop(easy, None) is not None:  # it was cancelled
                self._multi.remove_handle(easy)

    def close(self) -> None:
        """Close all connections."""
        self._loop.remove_reader(self._sockets)
        self._multi.close()
        self._sockets.close()
        if self._timer is not None:
            self._timer.cancel()

    def _serve(self) -> None:
        """Run libcurl for the sockets that are ready."""
        for key, events in self._sockets.select(0):
            self._multi.socket_action(key.fd, events)  # libcurl's numbers of events are those of `selectors`
            if not self._end() and events & pycurl.CSELECT_IN:
                _acknowledge(key.fd)

    def _expire(self) -> None:
        """Run libcurl, which begins what was added and ends what takes too long."""
        self._fires = inf
        self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        self._end()
        self._set_fires()

    def _end(self) -> bool:
        """End what libcurl is done with; return whether there was any."""
        _, done, failed = self._multi.info_read()
        for easy in done:
            self._finish(easy, None)
        for easy, code, text in failed:
            self._finish(easy, (code, text))
        return bool(done or failed)

    def _finish(self, easy: pycurl.Curl, fault: Fault | None) -> None:
        self._multi.remove_handle(easy)
        ended = self._running.pop(easy)
        if not ended.done():  # else it was cancelled in this iteration of the loop
            ended.set_result(fault)

    # What libcurl calls.

    def _watch(self, events: int, descriptor: int, _multi: Any, _data: Any) -> None:
        if not events & pycurl.POLL_INOUT:
            with suppress(KeyError):
                self._sockets.unregister(descriptor)
            return
        try:
            self._sockets.register(descriptor, events)
        except KeyError:
            self._sockets.modify(descriptor, events)

    def _set_timer(self, milliseconds: int) -> None:
        self._due = inf if milliseconds < 0 else self._loop.time() + milliseconds / 1000
        self._set_fires()

    def _set_fires(self) -> None:
        """Set the timer, unless it fires before it is due: nearly each request asks for a later time."""
        if self._due < self._fires:
            if self._timer is not None:
                self._timer.cancel()
            self._fires = self._due
            self._timer = self._loop.call_later(max(0.0, self._due - self._loop.time()), self._expire)


def _acknowledge(descriptor: int) -> None:
    """Acknowledge the bytes of a response that is not complete at once, where the system can.

    Many small servers send the head and the body apart, and send the body only when the head is acknowledged. The
    system would delay that acknowledgement by 40 ms (Nagle's algorithm, RFC 9293 section 3.7.4, meets delayed ones).
    """
    if _QUICK_ACK is None:
        return
    with suppress(OSError):  # threads that resolve names have sockets of another kind
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)
        finally:
            sock.detach()
