"""The MQTT side: a client of a broker, MQTT 5.0 over TCP and TLS; commands also speak 3.1.1 and WebSockets.

`packets` turns packets into bytes and back, without I/O, and refuses what the standard does not allow. `connection` is
one connection on an event loop, from CONNECT to its end; `reconnecting` opens the next one. `intake` has the messages
of a session, `publisher` what goes out. A message is acknowledged when the engine says that its calls have ended, maybe
much later.

The codec is our own, as no library keeps these promises. `mqtt5` 0.8.0 (Rust, no I/O, wheels for CPython from 3.11 on
Linux, macOS and Windows) would save 4 us of the some 100 that a message costs. But a text that is not UTF-8 makes it
panic, with a stack trace on standard error; it makes an object of each of four million properties (0.3 s, 335 MB); it
takes 14 of the 43 packets that the standard forbids and tests/mqtt/test_packets.py lists; and it has no MQTT 3.1.1.
"""
