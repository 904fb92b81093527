"""What loading route files comes to. Apart from the loader, which imports the parser: a worker loads in a process."""

from dataclasses import dataclass

from amqtt_rest_bridge.errors import Fault, Severity
from amqtt_rest_bridge.lot.model import Route
from amqtt_rest_bridge.system import FileState


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The routes without errors, in the order of their files, and all faults, sorted.

    `files` are those beside the route files that were read: when one of them changes, the routes do.
    `variables` and `secrets` are the names that GET reads, where the environment recorded them.
    """

    routes: tuple[Route, ...]
    faults: tuple[Fault, ...]
    files: frozenset[FileState] = frozenset()
    variables: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()

    @property
    def has_errors(self) -> bool:
        """Return whether anything keeps a route from working."""
        return any(fault.severity is Severity.ERROR for fault in self.faults)
