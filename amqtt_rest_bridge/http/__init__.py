"""HTTP out (`client`, on libcurl) and HTTP in (`server`, on asyncio and llhttp). Nothing of routes.

Both run on the event loop and start no threads; libcurl resolves host names on threads of its own.
"""
