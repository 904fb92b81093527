"""The drawing of README: the flow of the shipped routes, as the page of the admin port draws it.

    python -m tests.documents.flow

writes it; a test compares the file with what the product draws.
"""

import re

from amqtt_rest_bridge import load_routes
from amqtt_rest_bridge.admin.flow import drawing, edges
from amqtt_rest_bridge.admin.pages import page_environment
from tests.support.documents import ROOT

FILE = ROOT / "conf/pictures/flow.svg"
STYLE = ROOT / "amqtt_rest_bridge/site/static/site.css"


def svg() -> str:
    """Draw the shipped routes with the page's macro and the page's colours."""
    macros = page_environment().get_template("macros.html")
    routes = load_routes(ROOT / "conf/routes").routes
    page = str(macros.module.flow(drawing(edges(routes), {}), "The flow of the two routes"))  # type: ignore[attr-defined]
    drawn = re.search(r"<svg .*</svg>", page, re.DOTALL)
    assert drawn is not None
    style = STYLE.read_text(encoding="utf-8")
    colours = re.findall(r"^ +(--paper: .*;\n +--edge-box: .*;)$", style, re.MULTILINE)
    rules = "\n".join(re.findall(r"^(?:\.drawing|\.edge|marker).*}$", style, re.MULTILINE))
    (font,) = re.findall(r"--mono: [^;]*;", style)
    css = f"svg {{ {colours[0]} {font} background: var(--paper); }}\n{rules}\n"
    css += f"@media (prefers-color-scheme: dark) {{ svg {{ {colours[1]} }} }}\n"
    opening, _, rest = drawn[0].partition(">")
    return f'{opening} xmlns="http://www.w3.org/2000/svg">\n<style>\n{css}</style>{rest}\n'


if __name__ == "__main__":
    FILE.write_text(svg(), encoding="utf-8")
