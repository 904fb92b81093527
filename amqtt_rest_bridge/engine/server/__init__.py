"""Server mode: what happens to a request, from the path that it came to until its answer; `server_mode` is the door."""
