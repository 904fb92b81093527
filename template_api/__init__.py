"""The HTTP API of the template library, and what other programs may use of it.

The broker loads `template_api.plugin.TemplateApiPlugin`, the command `template-api` runs the API alone, and another
program serves it with the WSGI server that it has:

    >>> from pathlib import Path
    >>> from falcon.testing import TestClient  # in place of a WSGI server
    >>> from template_api import TemplateLibrary, create_app, import_templates
    >>> print(import_templates("sqlite:///library.db", Path("conf/library")))
    26 added, 0 changed, 0 unchanged, 0 failed
    >>> library = TemplateLibrary("sqlite:///library.db")
    >>> library.follow()
    >>> client = TestClient(create_app(library, "https://templates.example"))
    >>> client.simulate_get("/api/search", params={"q": "recieve webhok"}).json["results"][0]["slug"]
    'webhook-intake'
    >>> library.close()

The names of `__all__` are the public interface; everything else may move between two versions. They are imported when
they are first used: that costs 0.4 s of processor time.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from template_api.app import create_app
    from template_api.errors import DatabaseUnavailableError, SourceError, StartError, TemplateApiError
    from template_api.library import TemplateLibrary, import_templates

    __version__: str

__all__ = [
    "DatabaseUnavailableError",
    "SourceError",
    "StartError",
    "TemplateApiError",
    "TemplateLibrary",
    "__version__",
    "create_app",
    "import_templates",
]

_MODULES = {"TemplateLibrary": "library", "create_app": "app", "import_templates": "library"}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562)."""
    if name == "__version__":
        metadata = import_module("importlib.metadata")
        try:
            return metadata.version("amqtt-rest-bridge")
        except metadata.PackageNotFoundError:  # run from a source tree that is not installed
            return "unknown"
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
