"""HTTP out: what sends a request and reads its response, on urllib3. Knows nothing of routes' events."""
