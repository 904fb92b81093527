"""Server mode: what happens to a request, from its endpoint to its answer; `server_mode` is the door.

`endpoint` is the life of a request. `credentials`, `signatures` and `cors` say whether its caller is admitted. `reads`
answers read events from the `newest` messages, `replies` waits for a reply on a topic. `unmatched` counts requests that
led to no endpoint, `openapi` describes the endpoints of a port.
"""
