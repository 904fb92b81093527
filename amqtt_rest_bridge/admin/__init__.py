"""What operators see of a bridge: runs of calls and requests, figures, problems, retries, and the port that shows them.

`admin.Admin` puts the parts together. The `recorder` is handed each call and request that has ended: it counts, keeps
runs with their `evidence`, and finds `problems`. `app` is the admin port: it answers with `pages`, `json_objects` and
`metrics`, which show runs and `figures`, streams runs (`live`), and sends messages again (`retries`). Event loop only.
"""
