"""How settings are checked against the types of a plugin, and how reasons are worded."""

from dataclasses import dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import Any, Literal

import dacite
import pytest

from amqtt_rest_bridge.cli.configuration import InvalidValue, build, listed_plugins, read
from amqtt_rest_bridge.errors import Position, reason


@dataclass
class Demanding:
    name: str
    size: int = 1

    def __post_init__(self) -> None:
        if self.name == "root":
            raise ValueError("root is reserved")


FITS = [
    pytest.param({"name": "a", "size": 2}, [], id="fits"),
    pytest.param({}, [InvalidValue(None, 'missing value for field "name"')], id="missing"),
    pytest.param({"name": 1}, [InvalidValue("name", "name must be text, not a whole number")], id="wrong-and-needed"),
    pytest.param({"name": "root"}, [InvalidValue(None, "root is reserved")], id="own-check"),
    pytest.param(
        {"name": "a", "size": [], "nam": 1, "x": 2},
        [
            InvalidValue("nam", "unknown setting nam", "did you mean name?"),
            InvalidValue("x", "unknown setting x"),
            InvalidValue("size", "size must be a whole number, not a list"),
        ],
        id="several",
    ),
]


@pytest.mark.parametrize(("values", "invalid"), FITS)
def test_every_value_that_does_not_fit_is_reported(values: dict[str, object], invalid: list[InvalidValue]) -> None:
    built, found = build(Demanding, values)
    assert sorted(found, key=str) == sorted(invalid, key=str)
    assert invalid or built == Demanding("a", 2)


@dataclass
class Inner:
    size: int = 1


@dataclass
class Varied:
    flag: bool = False
    number: int = 0
    ratio: float = 0.0
    limit: int | None = None
    text: str = ""
    names: list[str] = field(default_factory=list)
    acl: dict[str, list[str]] = field(default_factory=dict)
    sizes: dict[str, int] | None = None
    path: str | Path | None = None
    paths: str | list[str] | None = None
    inner: Inner = field(default_factory=Inner)
    anything: Any = None
    mapping: dict[Any, Any] = field(default_factory=dict)
    kind: Literal["a", "b"] = "a"


VALUES: list[Any] = [
    None, True, 0, 1, 2.5, "", "1", "a", [], ["a"], [1], {}, {"a": 1}, {"a": ["b"]}, {"a": [1]}, {1: ["b"]},
    {"size": 2}, {"size": "2"}, {"x": 1}, date(2026, 1, 31), [[]], {"a": None},
]  # fmt: skip


@pytest.mark.parametrize("name", [member.name for member in fields(Varied)])
def test_a_value_fits_when_amqtt_takes_it_but_true_is_not_a_number(name: str) -> None:
    for value in VALUES:
        try:
            expected = dacite.from_dict(Varied, {name: value}, dacite.Config(strict=True))
        except (dacite.DaciteError, TypeError, ValueError):  # also from inside dacite 1.9
            expected = None
        built, invalid = build(Varied, {name: value})
        true_as_number = value is True and name in ("number", "ratio", "limit")
        assert bool(invalid) == (expected is None or true_as_number), value
        assert invalid or built == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param({"acl": {"ann": ["hunter2", 3]}}, "what acl holds does not fit", id="list-in-mapping"),
        pytest.param({"acl": {"ann": "hunter2"}}, "what acl holds does not fit", id="mapping"),
        pytest.param({"names": [["hunter2"]]}, "names must be a list of text, not a list", id="list"),
        pytest.param({"inner": {"size": "hunter2"}}, "inner.size must be a whole number, not text", id="dataclass"),
        pytest.param({"inner": {"siez": "hunter2"}}, "inner: unknown setting siez", id="unknown-in-dataclass"),
        pytest.param({"inner": 3}, "inner must be a mapping, not a whole number", id="no-dataclass"),
        pytest.param({"kind": "c"}, "kind must be", id="literal"),
    ],
)
def test_place_inside_a_value_is_named_without_the_value(values: dict[str, Any], message: str) -> None:
    _, (found,) = build(Varied, values)
    assert found.message.startswith(message)
    assert "hunter2" not in found.message


def test_reason_is_the_first_message_of_the_exceptions_behind_an_error() -> None:
    error = RuntimeError()
    error.__cause__ = OSError(2, "No such\n file", "x")
    assert reason(error) == "[Errno 2] No such file: 'x'"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param(ValueError("not this\n  way"), "not this way", id="speaks-for-itself"),
        pytest.param(KeyError("name"), "KeyError: 'name'", id="needs-its-name"),
        pytest.param(ZeroDivisionError(), "ZeroDivisionError", id="says-nothing"),
    ],
)
def test_reason_of_an_error_is_one_line(error: Exception, text: str) -> None:
    assert reason(error) == text


def test_a_did_you_mean_says_what_to_write_in_the_place_of_the_key(tmp_path: Path) -> None:
    file = tmp_path / "broker.yaml"
    file.write_text("plugins:\n  amqtt_rest_bridge.plugin.RestBridgePlugin: {routes: r, wrkers: 1}\n")
    _, (fault, *_) = listed_plugins(read(file))
    assert fault.hint == "did you mean workers?"
    assert (fault.position, fault.end, fault.replacement) == (Position(2, 58), Position(2, 64), "workers")
