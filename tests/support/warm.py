"""Imported last by the fork server of `forked`: makes what each process would make for itself, and freezes it.

A fork shares the memory of what it was forked from until either writes to it, and a round of the garbage collector
writes to all that is not frozen.
"""

import gc
import os
from pathlib import Path

from amqtt_rest_bridge import __main__
from amqtt_rest_bridge.admin.pages import compiled
from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.loader import load
from amqtt_rest_bridge.lot.sources import read
from template_api import cli
from template_api.library.indexing import synonyms_of
from template_api.pages.resources import _compiled as compiled_pages

compiled()
compiled_pages("", playground=True)
synonyms_of(None)
commands = [__main__._application(name).commands[name] for name in __main__._COMMANDS]
for command in [*commands, *cli._application().commands.values()]:
    for parameter in command.params:
        getattr(parameter, "get_runtime_param", int)()  # which typer puts off until the first use
load(read([Path(__file__).parents[2] / "conf/routes"]), Environment(os.environ, Path()))
gc.collect()
gc.freeze()
