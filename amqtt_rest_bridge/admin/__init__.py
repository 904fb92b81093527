"""What operators see of a bridge: records of calls and requests, figures, problems, retries, and their port.

`parts.Admin` puts `records`, `figures`, `retries` and `app` together.
"""
