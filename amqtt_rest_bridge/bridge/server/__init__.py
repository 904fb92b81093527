"""Server mode: requests to publications and answers, as the application of `http_server`. No sockets here."""
