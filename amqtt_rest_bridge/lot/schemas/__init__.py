"""JSON Schemas of SCHEMA_FILE: read with the files that they refer to, compiled, and what a payload has against one.

`read` blocks for small files, when routes are loaded. A `Schema` holds their texts, so that it travels with its route,
and a file that changes is another definition. `checker_of` compiles it once, on any thread; any number of threads may
run a `Checker`. The modules with jsonschema are imported where there is a schema, and nowhere else: they take 0.1 s.
"""

from collections.abc import Callable
from dataclasses import dataclass

from amqtt_rest_bridge.errors import HintedError
from amqtt_rest_bridge.system import FileState

Checker = Callable[[bytes], list[str]]
"""Return what a payload has against a schema, 20 faults at most and a note that there are more; [] for nothing."""


class SchemaFileError(HintedError):
    """A file does not hold a JSON Schema that can be used."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema and the files that it refers to: their URIs and texts, its own first; `path` is as the route has it."""

    path: str
    documents: tuple[tuple[str, str], ...]


def read(path: str, seen: set[FileState]) -> Schema:
    """Read a schema with all that it refers to, and add to `seen` each file that was looked at, as it was then.

    Raises:
        SchemaFileError: A file cannot be read, is not a schema of 2020-12, or refers to what is not in its folder.
    """
    from amqtt_rest_bridge.lot.schemas import checks

    return Schema(path, checks.SchemaReader(path, seen).documents())


def checker_of(schema: Schema) -> Checker:
    """Compile a schema that `read` has returned."""
    from amqtt_rest_bridge.lot.schemas import checks

    return checks.checker_of(schema.documents)
