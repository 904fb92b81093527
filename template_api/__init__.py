"""The HTTP API of the template library."""
