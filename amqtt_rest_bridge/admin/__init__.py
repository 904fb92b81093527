"""What operators see of a bridge: records of calls and requests, figures, problems, retries, and their port.

In the one bridge `Admin` puts `records`, `figures`, `retries` and `app` together. The plugin's bridge process still has
`port`, `live`, `numbers` and the other half of `runs`.
"""
