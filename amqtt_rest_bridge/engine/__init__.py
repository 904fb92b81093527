"""What the bridge does with messages and requests, whatever broker and network are around it. One event loop.

It opens no socket and no file, and decides by no clock of its own. To read it, begin with the life of a call:

- `client_mode` is the door for messages: which events does one concern?
- `call`: offered, admitted, its turn, its attempts, its end, from top to bottom; calls that wait are entries of queues.
- `event`: a client event, prepared once: `build` makes the request of a message, `judge` the verdict on the reply.
  `requests` has the bytes of both, `failures` what a failed call publishes. `stages/` has a module for each setting.
- `outcome`: what became of it, logged, recorded and counted in `statistics`; `status` publishes the status of routes.
- `server_mode` is the door for requests; what happens to one is in `server/endpoint`.
- `needs`: what the engine is handed from outside, as interfaces. `trial` drives the same code without a network.
"""
