"""HTTP in: the ports of server mode, on waitress. Knows nothing of routes."""
