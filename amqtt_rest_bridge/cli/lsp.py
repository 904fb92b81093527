"""`rest-bridge lsp`: the language server of editors. Main thread."""

import importlib.util
import logging

from amqtt_rest_bridge.cli import SECRETS_DIR, SecretsDir
from amqtt_rest_bridge.errors import ConfigurationError

DESCRIPTION = """\
Serve an editor by the language server protocol, on standard input and output; the editor starts it.

It reports faults while you type, with quick fixes, completes and explains settings and placeholders, lists routes and
events, goes from a topic to its other end, formats, and tries events.
How editors start it is in conf/editors/README.md. It needs the extra: pip install 'amqtt-rest-bridge[lsp]'
"""
EPILOG = """\
exit status:
  0  the editor ended it, or is gone
  1  the editor ended it without a request to shut down
  2  the extra is not installed, or the command is used wrongly
"""


def run(secrets_dir: SecretsDir = SECRETS_DIR) -> int:
    """Serve until the editor ends it."""
    if importlib.util.find_spec("pygls") is None:
        raise ConfigurationError("pygls is not installed: pip install 'amqtt-rest-bridge[lsp]'")
    from amqtt_rest_bridge.tools.editor.server import serve

    logging.basicConfig(level=logging.WARNING)  # to standard error
    serve(secrets_dir)
    return 0
