"""The MQTT side: a client of a broker, MQTT 5.0 over TCP and TLS; commands also speak 3.1.1 and WebSockets.

`packets` turns packets into bytes and back, without I/O, and refuses what the standard does not allow; `connection` is
one connection on an event loop, from CONNECT to its end; `reconnecting` keeps a client id connected. `intake` has the
messages of a session, `publisher` what goes out. Nothing is acknowledged by itself: what takes a message says when it
has ended, maybe much later.

The codec is our own, as no library keeps these promises. `mqtt5` 0.8.0 (Rust, no I/O, wheels for CPython from
3.11 on Linux, macOS and Windows) reads a PUBLISH in 0.4 us where this one takes 3, and writes one in 0.4 for 1.7: that
is 4 us of the 25 that a message costs in this room, of some 100 in all. But a text that is not UTF-8 makes it panic,
with a stack trace on standard error; it makes an object of each of four million properties (0.3 s, 335 MB); it takes 14
of the 43 packets that the standard forbids and tests/mqtt/test_packets.py lists; and it has no MQTT 3.1.1.
"""
