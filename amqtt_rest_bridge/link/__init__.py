"""The link between the broker process and a bridge process, a socket pair: `frames` is its protocol, and what it costs.

`broker_end` runs on the broker's loop and never blocks it: what leaves waits in a queue, and calls under load share a
frame. `bridge_end` blocks: two threads read in turn, and any thread sends. `frames` turns calls and results into bytes
and back; `admin_frames` are those of the admin port. When either process ends, the other one reads the end of the link.
"""
