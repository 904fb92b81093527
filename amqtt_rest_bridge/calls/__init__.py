"""A call: its states, its stages, and the verdict on each try. Pure: no threads, clocks, sockets or files.

Drivers are the bridge process (`bridge.client.route_runner`), `try`, `test` and the simulation of the tests.
"""
