"""What is kept of calls and requests, for the admin port: the last of each route, without payloads."""
