"""What the bridge does with messages and requests, whatever broker and network are around it. One event loop.

The engine opens no socket and no file, and decides by no clock but the one that it is given. To read it, follow a
message:

- `client_mode` is the door for messages. It finds the events that listen to a message: each makes a call of it.
- `call` is the life of a call, from top to bottom: offered, admitted, its turn, its attempts, its end.
- `event` decides for it: `build` makes the request of an attempt, `judge` the verdict on its reply. `requests` has the
  bytes of both, `failures` what a failed call publishes, `stages/` a module for each setting.
- `outcome` counts, logs and records what became of it, in `statistics`; `status_reporter` publishes those.

`server_mode` is the door for requests; what happens to one is in `server/endpoint`. `needs` has all that the engine is
handed from outside, as interfaces. `trial` drives the same code without a network.
"""
