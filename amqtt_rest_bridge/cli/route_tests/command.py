"""`rest-bridge test`: run the tests beside route files. Main thread."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Final

import typer

from amqtt_rest_bridge.cli.route_tests.cases import CaseFile, find, load, read
from amqtt_rest_bridge.cli.route_tests.running import Difference, triggered
from amqtt_rest_bridge.cli.route_tests.running import run as run_case
from amqtt_rest_bridge.errors import ConfigurationError, visible
from amqtt_rest_bridge.masking import Masker

DESCRIPTION = """\
Run the *.test.yaml files beside route files, without broker and network, by the code that runs in the broker.

A test gives a message (topic, payload) with the response of the server, or an HTTP request, and says which requests are
sent, what is published and how a request is answered. The reference has all members:

  tests:
    - name: an alert opens a ticket
      message: {topic: plant/line-3/alert, payload: {text: hot, level: 2}}
      response: {status: 201, body: {id: 7}}
      sends: [{method: POST, url: "https://tickets.example.com/api/tickets", body: {title: hot}}]
      publishes: [{topic: tickets/opened, payload: {id: 7}}]
"""
EPILOG = """\
exit status:
  0  all tests passed
  1  a test failed, or the route files have errors
  2  a file cannot be read or is not a test file, or the command is used wrongly

examples:
  rest-bridge test conf/routes
  rest-bridge test conf/library --junit report.xml
"""
_COLUMN: Final = 58


@dataclass(slots=True)
class _Outcome:
    """What became of one test; `faults` are those of its route files."""

    file: Path
    name: str
    differences: list[Difference] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.differences and not self.faults

    def lines(self, shown: set[str]) -> Iterator[str]:
        """Write expected and actual side by side, and the faults that are not among those `shown`: they are added."""
        new = [fault for fault in self.faults if fault not in shown]
        shown.update(new)
        yield from (f"  {line}" for fault in new for line in fault.split("\n"))
        if len(new) < len(self.faults):
            yield "  and for reasons above" if new else "  for the reasons above"
        for one in self.differences:
            yield f"  {one.where}"
            yield f"    {'expected':<{_COLUMN}} | actual"
            for left, right in zip_longest(one.expected.split("\n"), one.actual.split("\n"), fillvalue=""):
                sign = "|" if left == right else "!"
                yield f"    {visible(left):<{_COLUMN}} {sign} {visible(right)}".rstrip()


def run(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="test file (*.test.yaml) or folder")],
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="also write the results as JUnit XML")] = None,
) -> int:
    """Run all tests and print those that fail."""
    files = [read(path) for path in find(paths)]
    outcomes = [outcome for file in files for outcome in _run_file(file)]
    shown: set[str] = set()
    for outcome in outcomes:
        print(f"{'ok  ' if outcome.passed else 'FAIL'} {outcome.file}: {outcome.name}")
        for line in outcome.lines(shown):
            print(line)
    failed = sum(not outcome.passed for outcome in outcomes)
    print(f"{len(outcomes) - failed} passed, {failed} failed")
    if junit is not None:
        _write_junit(junit, outcomes)
    return 1 if failed else 0


def _run_file(file: CaseFile) -> Iterator[_Outcome]:
    tested = load(file)
    masker = Masker(secret for route in tested.routes for secret in route.secrets)
    for name, case in file.cases:
        faults = tested.faults_of(partial(triggered, case))
        outcome = _Outcome(file.path, name, faults=[str(fault) for fault in faults])
        if outcome.passed:
            outcome.differences = [
                Difference(one.where, masker.text(one.expected), masker.text(one.actual))
                for one in run_case(case, tested.routes)
            ]
        yield outcome


def _write_junit(path: Path, outcomes: Sequence[_Outcome]) -> None:
    failed = sum(not outcome.passed for outcome in outcomes)
    suite = ET.Element("testsuite", name="rest-bridge test", tests=str(len(outcomes)), failures=str(failed))
    for outcome in outcomes:
        case = ET.SubElement(suite, "testcase", classname=str(outcome.file), name=visible(outcome.name))
        if not outcome.passed:
            failure = ET.SubElement(case, "failure", message="not as expected")
            failure.text = "\n".join(map(visible, outcome.lines(set())))
    try:
        ET.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror or error}") from error
