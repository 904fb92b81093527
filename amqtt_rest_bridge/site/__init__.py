"""What the pages of both sites share, the status pages and the template library: their look, and the playground.

Here is the look: style sheet, script and icon, and the templates that both render. Both packages serve these files,
each below a path of its own; what they link to each other by is relative. Any thread.
"""

from functools import cache
from importlib.resources import files
from typing import Final

SCRIPT: Final = "text/javascript; charset=utf-8"
SITE_FILES: Final = {"site.css": "text/css; charset=utf-8", "site.js": SCRIPT, "icon.svg": "image/svg+xml"}
"""The name of each file, and its media type."""
_TEMPLATES: Final = ("drawing.html", "playground.html")


@cache
def site_file(name: str) -> bytes:
    """Return a file of `SITE_FILES`."""
    return files("amqtt_rest_bridge.site").joinpath("static", name).read_bytes()


@cache
def site_template(name: str) -> str | None:
    """Return the text of a template that both sites have, None where there is none."""
    if name not in _TEMPLATES:
        return None
    return files("amqtt_rest_bridge.site").joinpath("templates", name).read_text(encoding="utf-8")
