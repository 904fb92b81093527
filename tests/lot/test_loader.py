import os
import sys
from pathlib import Path

import pytest

import amqtt_rest_bridge
from amqtt_rest_bridge.errors import Position
from amqtt_rest_bridge.lot.evaluation import Environment, NotAvailableError
from amqtt_rest_bridge.lot.loader import load
from amqtt_rest_bridge.lot.model import LoadResult
from amqtt_rest_bridge.lot.placeholders.text import MessageValues
from amqtt_rest_bridge.lot.sources import Source
from amqtt_rest_bridge.spelling import closest
from tests.support.documents import codes, page, section
from tests.support.route_text import BASIC, load_text, messages, write_secrets

SERVER = """\
DEFINE ROUTE {name} WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH ENABLE_SERVER "true"
        WITH SERVER_PORT {port}
    ADD EVENT E
        WITH METHOD "{method}"
        WITH ENDPOINT "{endpoint}"
        WITH DESTINATION_TOPIC "d"
"""


def load_files(**texts: str) -> LoadResult:
    sources = [Source(f"{name}.lot", text) for name, text in texts.items()]
    return load(sources, Environment({}, Path("/nowhere")))


def test_secrets_stay_out_of_faults_and_hints(tmp_path: Path) -> None:
    (tmp_path / "K").write_text("topsecret")
    event = 'ADD EVENT {}\nWITH METHOD POST\nWITH ENDPOINT "{}/{{secret.K}}"\nWITH DESTINATION_TOPIC "a"\n'
    text = (
        'DEFINE ROUTE A WITH TYPE REST_API\nADD REST_API_CONFIG\nWITH ENABLE_SERVER "true"\nWITH ENABLE_CORS "true"\n'
        'WITH CORS_ORIGINS "http://" + GET SECRET "K" + "/"\n'
        + "".join([event.format("E1", "/x"), event.format("E2", "/x"), event.format("E3", "x")])
    )
    faults = load([Source("a.lot", text)], Environment({}, tmp_path)).faults
    assert [fault.message for fault in faults] == [
        "CORS_ORIGINS holds 'http://{secret.K}/', which is not an origin",
        "POST /x/{secret.K} on port 8080 is exposed twice",
        'ENDPOINT "x/{secret.K}" does not begin with /',
    ]
    assert [fault.hint for fault in faults] == [
        "write http://{secret.K}", "the first is in a.lot:6:1", "write /x/{secret.K}"
    ]  # fmt: skip


def test_a_secret_that_is_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "K")
    with pytest.raises(NotAvailableError, match=r"K cannot be read from .*: it is a FIFO, not a regular file"):
        Environment({}, tmp_path).secret("K")


def test_routes_come_in_the_order_of_their_files_with_their_places() -> None:
    loaded = load_files(b=BASIC, a="\n\n  " + BASIC.replace("ROUTE R", "ROUTE A"))
    assert [(route.name, route.path, route.position) for route in loaded.routes] == [
        ("R", "b.lot", Position(1, 1)),
        ("A", "a.lot", Position(3, 3)),
    ]
    assert loaded.faults == ()


def test_route_name_is_unique_over_all_files() -> None:
    loaded = load_files(a=BASIC, b="// second\n" + BASIC)
    assert [str(fault) for fault in loaded.faults] == [
        "b.lot:2:1: error: there are two routes R\nhint: the first is in a.lot:1:1"
    ]
    assert len(loaded.routes) == 1


def test_endpoint_is_unique_over_all_files_and_names_both_positions() -> None:
    first = SERVER.format(name="A", port=8080, method="POST", endpoint="/x/{a}")
    second = SERVER.format(name="B", port=8080, method="post", endpoint="/x/{b}")
    loaded = load_files(a=first, b=second)
    assert [str(fault) for fault in loaded.faults] == [
        "b.lot:5:5: error: POST /x/{b} on port 8080 is exposed twice\nhint: the first is in a.lot:5:5"
    ]


@pytest.mark.parametrize(
    ("port", "method", "endpoint"),
    [(8081, "POST", "/x"), (8080, "PUT", "/x"), (8080, "POST", "/x/"), (8080, "POST", "/X")],
)
def test_other_endpoint_may_share_what_is_left(port: int, method: str, endpoint: str) -> None:
    first = SERVER.format(name="A", port=8080, method="POST", endpoint="/x")
    assert load_files(a=first, b=SERVER.format(name="B", port=port, method=method, endpoint=endpoint)).faults == ()


def test_endpoint_of_an_unknown_port_conflicts_with_none() -> None:
    first = SERVER.format(name="A", port=8080, method="POST", endpoint="/x")
    loaded = load_files(a=first, b=first.replace("ROUTE A", "ROUTE B").replace("8080", "http"))
    assert [fault.message for fault in loaded.faults] == ['SERVER_PORT must be an integer from 0 to 65535, not "http"']


def test_faults_of_all_files_are_sorted_by_file_cell_and_line() -> None:
    bad = BASIC.replace("POST", "GTE").replace('"true"', '"yes"')
    names = ("n.lotnb#10", "n.lotnb#9", "b.lot", "a.lot")
    sources = [Source(name, bad.replace("ROUTE R", f"ROUTE R{number}")) for number, name in enumerate(names)]
    places = [(fault.path, fault.position.line) for fault in load(sources, Environment({}, Path("/nowhere"))).faults]
    assert places == [(name, line) for name in ("a.lot", "b.lot", "n.lotnb#9", "n.lotnb#10") for line in (4, 7)]


def test_a_route_with_an_error_is_left_out_and_the_others_are_not() -> None:
    loaded = load_text(BASIC.replace("POST", "GTE") + BASIC.replace("ROUTE R", "ROUTE Good"))
    assert [route.name for route in loaded.routes] == ["Good"]
    assert loaded.has_errors


@pytest.mark.parametrize(
    ("source", "destination", "is_loop"),
    [
        *(("#", "{topic}x", True), ("#", "x{topic}", True)),
        *(("a/#", "{topic}x", True), ("a/#", "x{topic}", False), ("a/#", "a/x{topic}x", True)),
    ],
)
def test_text_around_the_whole_topic_is_a_loop_where_a_filter_of_many_levels_takes_it(
    source: str, destination: str, *, is_loop: bool
) -> None:
    text = BASIC.replace('SOURCE_TOPIC "in"', f'SOURCE_TOPIC "{source}" WITH DESTINATION_TOPIC "{destination}"')
    assert any("matches SOURCE_TOPIC" in fault.message for fault in load_text(text).faults) == is_loop


def test_secrets_are_never_in_faults_or_reprs(tmp_path: Path) -> None:
    secrets = write_secrets(tmp_path)
    (secrets / "x").write_text("s3cr3t value\n")
    text = "".join(
        BASIC.replace("ROUTE R", f"ROUTE R{number}").replace(old, new)
        for number, (old, new) in enumerate(
            [
                ('"true"', 'GET SECRET "x"'),
                ('"http://api.example.com"', '"http://{secret.x}/"'),
                ('"http://api.example.com"', '"http://api.example.com:" + GET SECRET "x"'),
                ('"in"', '"{secret.x}/#/"'),
                ('"POST"', 'GET SECRET "x"'),
                ('"/x"', '"/x?k=" + GET SECRET "x"'),
                ('"/x"\n', '"/x"\nWITH DESTINATION_TOPIC "a/" + GET SECRET "x" + "/#"\n'),
                ('"/x"\n', '"/x"\nWITH HEADERS ADD "{secret.x}" "1"\n'),
                ('"/x"\n', '"/x"\nWITH SIGNATURE_SECRET GET SECRET "x"\nWITH BODY "{secret.x}"\n'),
            ]
        )
    )
    loaded = load([Source("t.lot", text)], Environment({}, secrets))
    assert len({fault.position.line for fault in loaded.faults}) >= 8
    assert "s3cr3t" not in "".join(map(str, loaded.faults))
    assert "s3cr3t" not in repr(loaded.routes)
    assert loaded.routes[-1].secrets == {"s3cr3t value"}


def test_route_collects_what_must_be_masked(tmp_path: Path) -> None:
    credentials = """
    WITH USERNAME "user" WITH PASSWORD "pass" + GET ENV "MORE"
    WITH SERVER_USERNAME "su" WITH SERVER_PASSWORD spass
    """
    text = BASIC.replace('"true"\n', f'"true"{credentials}')
    text += """WITH SIGNATURE_SECRET "sign"
    WITH BODY '{"k": "{secret.api-key}", "t": "{env.MY_TOKEN}", "p": "{env.PLAIN}"}'
    WITH HEADERS ADD X-Api-Key GET ENV "PLAIN2" ADD X-Other GET ENV "PLAIN3" """
    environment = {"MORE": "word", "MY_TOKEN": "tok", "PLAIN": "p1", "PLAIN2": "p2", "PLAIN3": "p3"}
    loaded = load([Source("t.lot", text)], Environment(environment, write_secrets(tmp_path)))
    assert not loaded.has_errors
    assert loaded.routes[0].secrets == {"password", "word", "spass", "sign", "k3y", "tok", "p2"}


@pytest.mark.parametrize(
    ("content", "read"),
    [(b"a", "a"), (b"a\n", "a"), (b"a\r\n", "a"), (b"a\n\n", "a\n"), (b" a ", " a "), (b"\xc3\xa9\n", "é"), (b"", "")],
)
def test_line_break_at_the_end_of_a_secret_is_not_part_of_it(content: bytes, read: str, tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(content)
    assert Environment({}, tmp_path).secret("s") == read


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        *((name, "write the name alone; ") for name in ("", ".", "..", "../s", "a/b", "a\\b", "a\0b")),
        ("none", "put that file there, or name another folder: "),
        ("folder", "make it a file that the user of the broker "),
        ("binary", "store it as text in UTF-8"),
        ("big", "put the secret alone into the file"),
    ],
)
def test_secret_that_cannot_be_had_is_refused_with_what_to_do(name: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "big").write_bytes(b"x" * 65_537)
    (tmp_path / "s").write_bytes(b"x")
    with pytest.raises(NotAvailableError) as raised:
        Environment({}, tmp_path).secret(name)
    assert (raised.value.hint or "").startswith(hint)


def test_line_breaks_in_strings_are_lf_whatever_the_file_uses() -> None:
    for text in (BASIC + "WITH BODY '[1,\n2]'", (BASIC + "WITH BODY '[1,\n2]'").replace("\n", "\r\n")):
        body = load_text(text).routes[0].client_events[0].body
        assert body is not None
        assert body.fill_bytes(MessageValues(b"", 0, topic="in")) == b"[1,\n2]"


def test_positions_count_tabs_and_wide_characters_as_one() -> None:
    text = BASIC.replace("        WITH METHOD", "\t/*🌍é*/\tWITH METHOD").replace("POST", "PUSH")
    assert messages(text)[0].startswith("t.lot:7:21: error: METHOD must be ")


def test_a_thousand_faults_are_all_reported() -> None:
    assert len(load_text(BASIC + "WITH NOTHING '1'\n" * 1000).faults) == 1000


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("REQUEST_TIMOUT", "REQUEST_TIMEOUT"),
        ("request-timeout", "REQUEST_TIMEOUT"),
        ("RETRIS", "RETRIES"),
        ("TIMEOUT", "REQUEST_TIMEOUT"),
        ("PORT", "SERVER_PORT"),
        ("di", "id"),
        ("XYZ", None),
        ("", None),
    ],
)
def test_did_you_mean(name: str, meant: str | None) -> None:
    assert closest(name, ["SERVER_PORT", "REQUEST_TIMEOUT", "RETRIES", "id"], parts=True) == meant


def test_the_readme_names_every_module_that_a_route_text_passes(tmp_path: Path) -> None:
    """A function of each of them runs while a good file with both kinds of events is loaded."""
    event = 'ADD EVENT H WITH METHOD POST WITH ENDPOINT "/h" WITH DESTINATION_TOPIC "h"'
    text = BASIC.replace("WITH ENABLE_CLIENT", "WITH ENABLE_SERVER true WITH ENABLE_CLIENT")
    (tmp_path / "r.lot").write_text(f"{text} WITH WHEN '{{value.json.level}} > 3'\n{event} WITH PAYLOAD {{body}}\n")
    root = Path(amqtt_rest_bridge.__file__).parent
    files: set[Path] = set()
    sys.setprofile(lambda frame, _event, _argument: files.add(Path(frame.f_code.co_filename)))
    try:
        loaded = amqtt_rest_bridge.load_routes(tmp_path)
    finally:
        sys.setprofile(None)
    assert [len(loaded.routes[0].client_events), len(loaded.routes[0].server_events)] == [1, 1]
    passed = {file.relative_to(root).as_posix() for file in files if file.is_relative_to(root)}
    for folder in ("lot/placeholders/", "lot/grammar/"):
        passed = {folder if name.startswith(folder) else name for name in passed}
    named = codes(section(page("amqtt_rest_bridge/ARCHITECTURE.md"), "The journey of a route text"))
    floors = {"addresses.py", "errors.py", "topics.py", "__init__.py"}
    floors |= {f"lot/{name}.py" for name in ("model", "masking", "secret_search")}
    assert passed - floors <= set(named)
    assert len(passed - floors) <= 13
