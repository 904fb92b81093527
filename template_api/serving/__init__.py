"""The process that serves the API: listening socket, waitress, start and stop, and its supervisor in the broker.

`plugin` imports `supervisor` only, so that the broker's process loads neither waitress nor a database.
"""
