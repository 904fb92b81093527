"""Compiles the grammar of the route language on import: in the fork server once, for all commands that it forks.

Each would take half a second where Python may not write `__pycache__`: the grammar's cache follows its rules.
"""

from amqtt_rest_bridge.language import grammar

grammar.parse("")
