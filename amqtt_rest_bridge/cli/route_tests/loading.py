"""The routes that a test file tests, and which cases need one that lacks a secret or variable. Reads files."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from amqtt_rest_bridge.cli.route_tests.cases import CaseFile
from amqtt_rest_bridge.errors import Fault, Severity
from amqtt_rest_bridge.language import loader, sources
from amqtt_rest_bridge.language.definitions import ParsedTexts
from amqtt_rest_bridge.language.evaluation import Environment, NotAvailableError
from amqtt_rest_bridge.language.sources import in_order
from amqtt_rest_bridge.model import Route

_Kind = Literal["environment", "secrets"]
# Of a form that most settings take: a number is a host and a topic too; the other is Base64, and long enough for a key.
_SUBSTITUTES: Final[Mapping[_Kind, str]] = {"environment": "1", "secrets": "c3RhbmQtaW4tc3RhbmQtaW4tc3RhbmQt"}


@dataclass(frozen=True, slots=True)
class TestedRoutes:
    """The routes of a test file that can be used, and the errors of the others.

    `whole` are all routes, those that lack a secret or variable with a text in its place: they are never run. It is
    None when there are other errors: then no case can run.
    """

    routes: tuple[Route, ...]
    whole: tuple[Route, ...] | None
    errors: tuple[Fault, ...]

    def faults_of(self, triggered: Callable[[Sequence[Route]], set[str]]) -> list[Fault]:
        """Return what keeps a case from running: the errors of the routes that it triggers, of which it gets names."""
        if self.whole is None or not self.errors:
            return list(self.errors)
        names, found = triggered(self.whole), []
        for fault in self.errors:  # each is in the last route that begins before it
            before = [route for route in self.whole if route.path == fault.path and route.position <= fault.position]
            if not before or max(before, key=lambda route: route.position).name in names:
                found.append(fault)
        return found


def load(file: CaseFile) -> TestedRoutes:
    """Load the routes of a test file; raises `ConfigurationError` where a path cannot be read."""
    texts, parsed = sources.read(file.routes), ParsedTexts()
    environment = _CaseEnvironment({**os.environ, **file.environment}, Path(), file.secrets, str(file.path))
    loaded = whole = loader.load(texts, environment, parsed)
    errors = _errors(loaded)
    while lacking := [fault for fault in _errors(whole) if fault.message in environment.lacking]:  # one of each string
        errors += lacking
        environment = environment.completed(lacking)
        whole = loader.load(texts, environment, parsed)
    return TestedRoutes(loaded.routes, None if whole.has_errors else whole.routes, in_order(errors))


def _errors(loaded: loader.LoadResult) -> list[Fault]:
    return [fault for fault in loaded.faults if fault.severity is Severity.ERROR]


@dataclass(frozen=True, slots=True)
class _CaseEnvironment(Environment):
    """What a test file gives its routes, and by message what it lacks; the process gives variables, but no secrets."""

    secrets: Mapping[str, str]
    file: str
    lacking: dict[str, tuple[_Kind, str]] = field(default_factory=dict)

    def variable(self, name: str) -> str:
        """Return a variable; raises `NotAvailableError`."""
        try:
            return Environment.variable(self, name)
        except NotAvailableError as error:
            raise self._lacks("environment", name, str(error)) from None

    def secret(self, name: str) -> str:
        """Return a secret, without the line break at its end; raises `NotAvailableError`."""
        if name not in self.secrets:
            raise self._lacks("secrets", name, f"the test file has no secret {name}")
        return self.secrets[name].removesuffix("\n").removesuffix("\r")

    def completed(self, faults: Iterable[Fault]) -> "_CaseEnvironment":
        """Return an environment that also has what faults report as missing; what has a default keeps it."""
        missing = [self.lacking[fault.message] for fault in faults]
        added = {kind: {name: text for one, name in missing if one == kind} for kind, text in _SUBSTITUTES.items()}
        return replace(
            self,
            environment={**self.environment, **added["environment"]},
            secrets={**self.secrets, **added["secrets"]},
            lacking={},
        )

    def _lacks(self, kind: _Kind, name: str, message: str) -> NotAvailableError:
        self.lacking[message] = (kind, name)
        return NotAvailableError(message, f"write a value for the test into {self.file}, as in {kind}: {{{name}: abc}}")
