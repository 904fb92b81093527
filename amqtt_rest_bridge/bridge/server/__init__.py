"""Server mode as a Falcon application: requests to publications and answers. Knows no sockets."""
