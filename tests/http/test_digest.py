"""Which challenge of a server is answered, and with what: RFC 7616, without a server."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqtt_rest_bridge.errors import CallError, FailureCode
from amqtt_rest_bridge.http.digest import Challenge, DigestLogin, RequestLogin, strongest_challenge
from amqtt_rest_bridge.lot.model import RestApiConfig

MUFASA = RestApiConfig(username="Mufasa", password="Circle of Life")
NONCE = "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v"
OPAQUE = "FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS"
CNONCE = "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ"
FIELDS = f'qop="auth, auth-int", nonce="{NONCE}", opaque="{OPAQUE}"'
SHA_256 = f'Digest realm="http-auth@example.org", {FIELDS.replace(", nonce", ", algorithm=SHA-256, nonce")}'
MD5 = f'Digest realm="http-auth@example.org", {FIELDS.replace(", nonce", ", algorithm=MD5, nonce")}'


def login(config: RestApiConfig = MUFASA) -> RequestLogin:
    return RequestLogin(DigestLogin(config, lambda: CNONCE))


def challenge(value: str) -> tuple[tuple[str, str], ...]:
    return (("WWW-Authenticate", value),)


def field(authorization: str | None, name: str) -> str | None:
    found = re.search(rf'[ ,]{re.escape(name)}=("?)([^",]*)\1(?:,|$)', authorization or "")
    return None if found is None else found[2]


@pytest.mark.parametrize(
    ("algorithm", "offered", "response"),
    [
        ("SHA-256", SHA_256, "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
        ("MD5", MD5, "8ca523f5e9506fed4657c9700eebdbec"),
    ],
)
def test_the_first_example_of_rfc_7616(algorithm: str, offered: str, response: str) -> None:
    of = login()
    assert of.must_repeat(401, challenge(offered))
    assert of.authorization("GET", "/dir/index.html") == (
        f'Digest username="Mufasa", realm="http-auth@example.org", nonce="{NONCE}", uri="/dir/index.html", '
        f'algorithm={algorithm}, qop=auth, nc=00000001, cnonce="{CNONCE}", response="{response}", opaque="{OPAQUE}"'
    )


def test_the_second_example_of_rfc_7616_as_its_erratum_4897_has_it() -> None:
    """SHA-512/256 is a hash of its own, of which the text of the RFC has a cut SHA-512."""
    offered = (
        'Digest realm="api@example.org", qop="auth", algorithm=SHA-512-256, '
        'nonce="5TsQWLVdgBdmrQ0XsxbDODV+57QdFR34I9HAbC/RVvkK", opaque="HRPCssKJSGjCrkzDg8OhwpzCiGPChXYjwrI2QmXDnsOS", '
        "charset=UTF-8, userhash=true"
    )
    config = RestApiConfig(username="J\u00e4s\u00f8n Doe", password="Secret, or not?")
    of = RequestLogin(DigestLogin(config, lambda: "NTg6RKcb9boFIAS3KrFK9BGeh+iDa/sm6jUMp2wds69v"))
    assert of.must_repeat(401, challenge(offered))
    sent = of.authorization("GET", "/doe.json")
    assert field(sent, "username") == "793263caabb707a56211940d90411ea4a575adeccb7e360aeb624ed06ece9b0b"
    assert field(sent, "response") == "3798d4131c277846293534c3edc11bd8a5e4cdcbff78b05db9d95eeb1cec68a5"
    assert field(sent, "userhash") == "true"


def test_a_server_without_qop_is_answered_as_rfc_2069_has_it() -> None:
    """The response is that of RFC 2069's example as its erratum 749 has it."""
    of = login(RestApiConfig(username="Mufasa", password="CircleOfLife"))
    offered = 'Digest realm="testrealm@host.com", nonce="dcd98b7102dd2f0e8b11d0f600bfb0c093"'
    assert of.must_repeat(401, challenge(offered))
    sent = of.authorization("GET", "/dir/index.html")
    assert field(sent, "response") == "1949323746fe6a43ef61f9606e7febea"
    assert field(sent, "qop") is field(sent, "nc") is field(sent, "algorithm") is None


def test_texts_of_the_server_and_the_route_stay_within_their_quotes() -> None:
    of = login(RestApiConfig(username='a"b', password="p"))
    assert of.must_repeat(401, challenge(r'Digest realm="x\", uri=\"/y", nonce="\\", qop=auth, opaque=""'))
    sent = of.authorization("GET", "/")
    assert sent is not None
    assert sent.startswith(r'Digest username="a\"b", realm="x\", uri=\"/y", nonce="\\", uri="/"')
    assert sent.endswith('opaque=""')
    of = login(RestApiConfig(username="J\u00e4s\u00f8n Doe", password="p"))
    assert of.must_repeat(401, challenge('Digest realm="r", nonce="n"'))
    assert "username*=UTF-8''J%C3%A4s%C3%B8n%20Doe, realm" in (of.authorization("GET", "/") or "")


@pytest.mark.parametrize(
    ("values", "algorithm"),
    [
        pytest.param((MD5, SHA_256), "SHA-256", id="a header each"),
        pytest.param((f"{MD5}, {SHA_256}",), "SHA-256", id="one header"),
        pytest.param((f'Basic realm="a, Digest b", {MD5}',), "MD5", id="behind Basic"),
        pytest.param((f"{SHA_256},Negotiate abc==,{MD5}",), "SHA-256", id="with token68"),
        pytest.param((SHA_256, SHA_256.replace("SHA-256", "SHA-512-256")), "SHA-512-256", id="SHA-512-256"),
        pytest.param((SHA_256.replace("SHA-256", "SHA-256-sess"), MD5), "MD5", id="an algorithm that is not known"),
        pytest.param((SHA_256.replace("auth, ", ""), MD5), "MD5", id="auth-int alone is ignored beside another one"),
        pytest.param((SHA_256.replace("nonce", "none"), MD5), "MD5", id="without a nonce"),
        pytest.param((SHA_256.replace("/xlj", "\x01"), MD5), "MD5", id="with a control character"),
        pytest.param((f'Digest realm="broken, {MD5}', MD5), "MD5", id="a quote that is not closed"),
    ],
)
def test_the_strongest_of_the_challenges_that_are_understood_is_answered(
    values: tuple[str, ...], algorithm: str
) -> None:
    assert strongest_challenge(values).algorithm == algorithm


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param((), "asks for nothing", id="no challenge"),
        pytest.param(('Basic realm="a"', "Bearer"), "asks for basic, bearer, not for Digest", id="others"),
        pytest.param((SHA_256.replace("auth, ", ""),), "qop auth-int", id="auth-int alone"),
        pytest.param((SHA_256.replace("SHA-256", "SHA-1"),), "(algorithm SHA-1)", id="algorithm"),
        pytest.param(("Digest",), "(algorithm none)", id="empty"),
    ],
)
def test_what_cannot_be_answered_is_a_failure_that_says_why(values: tuple[str, ...], words: str) -> None:
    with pytest.raises(CallError, match=re.escape(words)) as failure:
        login().must_repeat(401, tuple(("WWW-Authenticate", value) for value in values))
    assert (failure.value.code, failure.value.unsent) == (FailureCode.HTTP_STATUS, False)


@given(st.text('Digest ="\\,;\x00ab\u00e4-MD5realnoc', max_size=200))
def test_no_header_of_a_server_breaks_the_bridge(text: str) -> None:
    try:
        found = strongest_challenge([text])
    except CallError:
        return
    assert isinstance(found, Challenge)


@pytest.mark.parametrize("piece", [",", " ", "a", 'a="', 'a="\\"', "a=b,", "=", "Digest ", 'Digest nonce="', "\\"])
def test_a_long_header_takes_no_long_time(piece: str) -> None:
    """Of a quadratic parser 16 KiB would take minutes."""
    with pytest.raises(CallError):
        strongest_challenge([piece * 100_000])


def test_each_request_has_the_next_count_until_there_is_another_nonce() -> None:
    of = login()
    assert of.authorization("GET", "/") is None
    assert of.must_repeat(401, challenge(MD5))
    assert [field(of.authorization("GET", "/"), "nc") for _ in range(3)] == ["00000001", "00000002", "00000003"]
    assert not of.must_repeat(200, (("Authentication-Info", 'nextnonce="next", qop=auth'),))
    sent = of.authorization("POST", "/x?y=1")
    assert (field(sent, "nonce"), field(sent, "nc"), field(sent, "uri")) == ("next", "00000001", "/x?y=1")
    assert not of.must_repeat(200, (("Authentication-Info", 'nextnonce="a\x7f"'),))
    assert field(of.authorization("GET", "/"), "nonce") == "next"


@pytest.mark.parametrize(
    ("stale", "requests"),
    [
        pytest.param("", 2, id="wrong credentials"),
        pytest.param(", stale=false", 2, id="wrong credentials of a server that says so"),
        pytest.param(', stale="TRUE"', 3, id="a nonce that is stale at once"),
    ],
)
def test_a_server_that_goes_on_to_refuse_is_asked_a_bounded_number_of_times(stale: str, requests: int) -> None:
    of = login()
    counted = next(n for n in itertools.count(1) if not of.must_repeat(401, challenge(f"{MD5}{stale}")))
    assert counted == requests
    assert of.authorization("GET", "/") is None  # the next call begins afresh
