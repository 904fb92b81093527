"""What operators see of a bridge: runs of calls and requests, figures, problems, retries, and the port that shows them.

`parts.Admin` puts `recorder`, `figures`, `retries` and `app` together. The loop alone.
"""
