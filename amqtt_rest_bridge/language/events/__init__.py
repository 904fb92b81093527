"""EVENT blocks to events: in client mode they send requests, in server mode they publish, read or wait for a reply."""
