"""A call of the plugin's bridge processes: its states, its stages, and the verdict on each try. Pure.

No threads, clocks, sockets or files. Which failure is retried, what a batch holds, what a breaker and an access token
allow: `engine` decides it for both bridges. Drivers are the bridge process (`bridge.client.route_runner`) and the
simulation of the tests.
"""
