"""Whatever a route file holds: declared errors only, in bounded time, positions inside the text (property tests)."""

import functools
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amqtt_rest_bridge.errors import Fault
from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.loader import load
from amqtt_rest_bridge.lot.sources import SUFFIXES, Source, read
from tests.support.route_text import CASES, ENVIRONMENT, messages, write_secrets

FILES = {path.name: path.read_bytes() for path in sorted((CASES / "valid").iterdir()) if path.suffix in SUFFIXES}
PIECES = [
    b'"', b"'", b"\\", b"/*", b"*/", b"//", b"--", b"+", b"\n", b"\r\n", b"\t", b"\0", b"{", b"}", b"{payload}",
    b"{env.", b"{secret.", b"WITH ", b"ADD ", b"ADD EVENT ", b"\nDEFINE ROUTE ", b" WITH TYPE REST_API", b"GET ENV ",
    b'GET SECRET "', b"WITH HEADERS\n", b"METHOD", b"'true'", b"\xff", b"\xe2\x80\x9c", b"\xef\xbb\xbf", b"[",
    b"\xc2\xa0", b"=", b"9" * 30,
]  # fmt: skip


@st.composite
def mutations(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw a valid file and damage it in one to six places."""
    name = draw(st.sampled_from(sorted(FILES)))
    content = FILES[name]
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 40)))
        insert = draw(
            st.one_of(st.sampled_from(PIECES), st.binary(max_size=12), st.just(b""), st.just(content[start:end] * 2))
        )
        content = content[:start] + insert + content[end:]
    return name, content


@functools.cache
def long_file_seconds() -> float:
    """Measure the CPU time of 8,000 ordinary lines: a second on a quiet machine; a quadratic text takes many."""
    route = """DEFINE ROUTE R{} WITH TYPE REST_API
        ADD REST_API_CONFIG WITH BASE_ADDRESS "http://127.0.0.1" WITH ENABLE_CLIENT "true"
        ADD EVENT E
            WITH SOURCE_TOPIC "in"
            WITH METHOD "POST"
            WITH ENDPOINT "/x"
            WITH BODY "{{payload}}"
            WITH DESTINATION_TOPIC "out"
    """
    messages(route.format(0))  # compiles the grammar
    started = time.process_time()
    source = Source("t.lot", "\n".join(map(route.format, range(50))))
    loaded = load([source], Environment({}, Path("/nowhere")))
    assert len(loaded.routes) == 50
    return 20 * (time.process_time() - started)


def check(name: str, content: bytes, folder: Path) -> None:
    path = folder / name
    path.write_bytes(content)
    sources = read([path])
    texts = {source.path: source.text for source in sources} | {str(path): content.decode("utf-8-sig", "replace")}
    started = time.process_time()
    loaded = load(sources, Environment(ENVIRONMENT, folder))
    assert time.process_time() - started < long_file_seconds()
    for fault in loaded.faults:
        check_fault(fault, texts)
    assert {route.path for route in loaded.routes} <= set(texts)


def check_fault(fault: Fault, texts: dict[str, str]) -> None:
    lines = texts[fault.path].split("\n")
    assert 1 <= fault.position.line <= len(lines)
    assert 1 <= fault.position.column <= len(lines[fault.position.line - 1]) + 1
    assert fault.message.isprintable()
    assert (fault.hint or "").isprintable()


@pytest.mark.parametrize(
    "examples", [pytest.param(50, id="some"), pytest.param(10_000, id="thousands", marks=pytest.mark.long)]
)
def test_damaged_files_give_faults_inside_their_text(examples: int, tmp_path: Path) -> None:
    write_secrets(tmp_path)

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(mutations())
    def holds(mutation: tuple[str, bytes]) -> None:
        check(*mutation, tmp_path)

    holds()


@pytest.mark.parametrize("part", [pytest.param(4, id="a part"), pytest.param(1, id="all", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param(lambda n: '"\\"' * n, 2000, id="quotes that are all escaped"),
        pytest.param(lambda n: ("'" + '"\\"\n') * n, 1500, id="quotes left open on every line"),
        pytest.param(lambda n: "/*" * n, 5000, id="comments never closed"),
        pytest.param(lambda n: "WITH " * n, 2500, id="statements without names"),
        pytest.param(lambda n: "ADD EVENT E\n" * n, 1000, id="a thousand events of one name"),
        pytest.param(lambda n: "x " * n, 5000, id="words"),
        pytest.param(lambda n: 'WITH BODY "' + "{value.json.a" * n + '"', 3000, id="braces never closed"),
        pytest.param(lambda n: 'WITH A "a"' + '+ "a"' * n, 3000, id="a sum of three thousand"),
        pytest.param(lambda n: "\nDEFINE" * n, 3000, id="definitions of nothing"),
        pytest.param(lambda n: "(" * 4 * n + "--" * n, 5000, id="brackets and dashes"),
    ],
)
def test_hostile_text_takes_no_longer_than_a_long_file(text: Callable[[int], str], count: int, part: int) -> None:
    """A part of the text, no longer than as large a part of the file."""
    head = "DEFINE ROUTE R WITH TYPE REST_API\nADD REST_API_CONFIG\n"
    hostile, bound = text(count // part), long_file_seconds() / part
    started = time.process_time()
    faults = load([Source("t.lot", head + hostile)], Environment({}, Path("/nowhere"))).faults
    assert time.process_time() - started < bound
    assert faults
