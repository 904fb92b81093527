"""What operators see of a bridge: runs of calls and requests, figures, problems, retries, and the port that shows them.

`admin.Admin` puts them together: `recorder`, `figures`, `retries`, and `app`, the port. Event loop only.
"""
