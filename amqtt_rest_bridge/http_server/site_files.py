"""What all pages look like: style sheet, script and icon of the status pages and of the library. Any thread.

Both packages serve these files, each below a path of its own; what they link to each other by is relative.
"""

from functools import cache
from importlib.resources import files
from typing import Final

SCRIPT: Final = "text/javascript; charset=utf-8"
SITE_FILES: Final = {"site.css": "text/css; charset=utf-8", "site.js": SCRIPT, "icon.svg": "image/svg+xml"}
"""The name of each file, and its media type."""


@cache
def site_file(name: str) -> bytes:
    """Return a file of `SITE_FILES`."""
    return files("amqtt_rest_bridge.http_server").joinpath("site", name).read_bytes()
