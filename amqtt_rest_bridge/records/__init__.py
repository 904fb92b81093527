"""What is kept of calls and requests: their values, the last failures with their messages, and what is wrong now.

`admin` notes and shows them.
"""
