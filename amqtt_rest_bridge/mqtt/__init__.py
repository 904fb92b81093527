"""The MQTT client of workers and of the commands that ask a broker: MQTT 5.0 and 3.1.1 over TCP, TLS and WebSockets.

`packets` turns packets into bytes and back, without I/O, and refuses what the standard does not allow; `connection`
is one connection on an event loop, from CONNECT to its end; `address` says to whom; `websocket` is the other way there.
A connection acknowledges nothing by itself: what takes a message says when it has ended, maybe much later.
"""
