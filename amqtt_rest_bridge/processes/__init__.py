"""Bridge processes as the broker's side sees them: start, watch, restart, hand over calls, own listening sockets."""
