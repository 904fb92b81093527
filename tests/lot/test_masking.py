"""Secrets in every form in which servers send them back, and what is left of the text around them."""

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amqtt_rest_bridge.lot.masking import Masker, credentials_of

SECRET = 'gehé/m "x\\y" & 5'

Encoder = Callable[[str], bytes]


def go(text: str) -> bytes:
    escaped = json.dumps(text, ensure_ascii=False)[1:-1].encode()
    return escaped.replace(b">", rb"\u003e").replace(b"&", rb"\u0026").replace(b"<", rb"\u003c")


def every_character(text: str) -> bytes:
    units = text.encode("utf-16-be")
    return "".join([f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)]).encode()


ENCODERS: dict[str, Encoder] = {
    "as it is": str.encode,
    "upper case": lambda text: text.upper().encode(),
    "latin-1 where it can be": lambda text: text.encode("latin-1", "ignore") if text.isascii() else text.encode(),
    "UTF-8 taken for Latin-1": lambda text: text.encode().decode("latin-1").encode(),
    "the same in JSON": lambda text: json.dumps(text.encode().decode("latin-1"))[1:-1].encode(),
    "JSON": lambda text: json.dumps(text)[1:-1].encode(),
    "JSON in UTF-8": lambda text: json.dumps(text, ensure_ascii=False)[1:-1].encode(),
    "JSON of PHP": lambda text: json.dumps(text)[1:-1].replace("/", "\\/").encode(),
    "JSON of Go": go,
    "JSON, each character escaped": every_character,
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)[1:-1])[1:-1].encode(),
    "percent": lambda text: quote(text, safe="").encode(),
    "percent in lower case": lambda text: quote(text, safe="").lower().encode(),
    "percent with slashes": lambda text: quote(text).encode(),
    "a form": lambda text: quote_plus(text).encode(),
    "percent, twice": lambda text: quote(quote(text, safe=""), safe="").encode(),
    "percent, each byte": lambda text: "".join([f"%{byte:02x}" for byte in text.encode()]).encode(),
    "HTML": lambda text: html.escape(text).encode(),
    "HTML by numbers": lambda text: "".join([f"&#{ord(char)};" for char in text]).encode(),
    "HTML in HTML": lambda text: html.escape(html.escape(text)).encode(),
    "HTML in JSON": lambda text: json.dumps(html.escape(text))[1:-1].encode(),
    "a Python literal": lambda text: repr(text.encode())[2:-1].encode(),
    "hexadecimal": lambda text: text.encode().hex().encode(),
    "hexadecimal with colons": lambda text: text.encode().hex(":").upper().encode(),
    "decimal": lambda text: str(list(text.encode()))[1:-1].encode(),
    "Base64": lambda text: base64.b64encode(text.encode()),
    "Base64, URL-safe, without padding": lambda text: base64.urlsafe_b64encode(text.encode()).rstrip(b"="),
    "Base64, percent": lambda text: quote(base64.b64encode(text.encode()), safe="").encode(),
    "Base64 behind one byte": lambda text: base64.b64encode(b"x" + text.encode() + b"yz"),
    "Base64 behind two bytes": lambda text: base64.b64encode(b"ab" + text.encode() + b"y"),
    "Base64 in lines": lambda text: base64.encodebytes(b"in a certificate or in a letter: 54 " + text.encode()),
    "Base64 in lines, in JSON": lambda text: json.dumps(base64.encodebytes(text.encode() * 4).decode())[1:-1].encode(),
}


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS.keys())
@pytest.mark.parametrize("secret", [SECRET, "plain-t0ken_1234", "пароль-€-😀", "\"'\\<>&%+ "], ids=range(4))
def test_a_secret_in_any_form_is_masked_and_what_is_around_it_is_not(secret: str, encoder: Encoder) -> None:
    masker = Masker([secret, "another-secret"])
    masked = masker.body(b'["before", "' + encoder(secret) + b'", "behind"]')
    assert masked.startswith(b'["before", "')
    assert masked.endswith(b'", "behind"]')
    assert b"***" in masked
    left = masked.removeprefix(b'["before", "').removesuffix(b'", "behind"]').replace(b"***", b"")
    wrapped = b"aW4gYSBjZXJ0aWZpY2F0ZSBvciBpbiBhIGxldHRlcjogNTQg\n"  # what the test itself has put before it
    assert len(left.replace(wrapped, b"")) <= 6, left


@pytest.mark.parametrize("charset", ["latin-1", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_secret_in_another_charset_is_masked_in_that_charset(charset: str) -> None:
    text = f"before {SECRET} behind"
    masked = Masker([SECRET]).body(text.encode(charset))
    assert masked.decode(charset) == "before *** behind"
    in_json = Masker([SECRET]).body(json.dumps({"a": SECRET}).encode(charset))
    assert json.loads(in_json.decode(charset)) == {"a": "***"}


def test_a_binary_body_is_masked_in_its_bytes() -> None:
    body = bytes(range(128, 256)) + SECRET.encode() + b"\0\xff" * 20
    assert Masker([SECRET]).body(body) == bytes(range(128, 256)) + b"***" + b"\0\xff" * 20


def test_json_stays_json_wherever_a_secret_is_in_it() -> None:
    masker = Masker(["123456789", "nabcdef", '{"a": "private", "b": 1}', "0073abcdef"])
    body = rb"""{"pin": 123456789, "more": [91234567891.5, -123456789], "text": "x 123456789, \nabcdef",
        "e": "\u0073abcdef", "whole": {"a": "private", "b": 1}, "inside": "{\"a\": \"private\", \"b\": 1}",
        "123456789": null}"""
    assert json.loads(masker.body(body)) == {
        "pin": "***",
        "more": ["***", "***"],
        "text": "x ***, ***",
        "e": "***",
        "whole": "***",
        "inside": "***",
        "***": None,
    }
    assert masker.body(b"[ERROR] 123456789 is wrong") == b"[ERROR] *** is wrong"


def test_short_secrets_are_masked_where_people_look_and_left_in_what_is_published() -> None:
    masker = Masker(["test", "ab"])
    assert masker.body(b"a test failed") == b"a test failed"
    assert masker.body(b"a test failed", shown=True) == b"a *** failed"
    assert masker.text("a test failed, ab") == "a *** failed, ab"


def test_urls_show_no_values_of_variables_and_no_credentials_of_parameters() -> None:
    masker = Masker(["s3cret-1"], ["http://10.0.0.7:81/base", "tenant 7"])
    url = "http://10.0.0.7:81/base/tenant%207/x?q=1&api_key=abc&X-Amz-Signature=def&s=s3cret-1&design=x"
    assert masker.address(url) == "***/***/x?q=1&api_key=***&X-Amz-Signature=***&s=***&design=***"
    assert masker.address("http://h/x?t%6Fken=abc;Sig=1") == "http://h/x?t%6Fken=***;Sig=***"
    assert masker.text("tenant 7") == "tenant 7"
    for name in ("Location", "Referer", "X-Original-URI", "x-forwarded-uri"):
        assert masker.header(name, "/x?a=1&token=abc") == "/x?a=1&token=***"


@pytest.mark.parametrize(
    ("name", "value", "masked"),
    [
        ("Authorization", "Basic dTpw", "Basic ***"),
        ("authorization", "raw-token", "***"),
        ("X-Api-Key", "abc", "***"),
        ("Cookie", "a=b", "***"),
        ("Idempotency-Key", "abc", "abc"),
        ("Accept", "a/hush", "a/***"),
    ],
)
def test_headers_that_carry_credentials_are_masked(name: str, value: str, masked: str) -> None:
    assert Masker({"hush"}).header(name, value) == masked


def test_the_credentials_of_a_request_are_known_by_name_whole_and_in_parts() -> None:
    pair = base64.b64encode(b"user:pass word").decode()
    headers = [
        ("Authorization", f"Basic {pair}"),
        ("X-Api-Key", "k-1"),
        ("Cookie", "sid=abc; lang=en"),
        ("Accept", "text/html"),
        ("Idempotency-Key", "7"),
        ("Referer", "http://h/?code=1&access_token=from%20referer"),
    ]
    found = credentials_of(headers, "http://h/x?a=1&token=a%20b")
    expected = {f"Basic {pair}", pair, "pass word", "k-1", "sid=abc; lang=en", "abc", "en", "a%20b", "a b"}
    expected |= {"from%20referer", "from referer"}
    assert found >= expected
    assert not found & {"text/html", "7", "1"}


def test_a_masker_shows_no_secret() -> None:
    assert SECRET not in repr(Masker([SECRET]))


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=6, max_size=40)
AROUND = st.text(st.characters(max_codepoint=0x17F, exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)


@given(secret=TEXTS, encoder=st.sampled_from(sorted(ENCODERS)), before=AROUND, behind=AROUND, in_json=st.booleans())
@example(secret="a\\b%41c/d", encoder="JSON", before="", behind="", in_json=True)
@example(secret='0000"\\', encoder="HTML", before="", behind=":", in_json=False)
@example(secret="%41%42&amp;cdef", encoder="percent, twice", before="%", behind="", in_json=False)
def test_no_secret_comes_out_whatever_it_is_and_wherever_it_is(
    secret: str, encoder: str, before: str, behind: str, *, in_json: bool
) -> None:
    data = ENCODERS[encoder](secret)
    if in_json:
        body = json.dumps(before)[:-1].encode() + data + json.dumps(behind)[1:].encode()
    else:
        body = before.encode() + data + behind.encode()
    masked = Masker([secret, "unrelated-secret"]).body(body)
    assert data not in masked or data in b"***" or data in (before + behind).encode()
    assert secret.encode() not in masked or secret in before + behind
    try:
        value = json.loads(body)
    except ValueError:
        return
    assert type(json.loads(masked)) is type(value) or "***" in json.loads(masked)


@given(st.binary(max_size=300), st.lists(TEXTS, max_size=3))
def test_any_bytes_can_be_masked(body: bytes, secrets: list[str]) -> None:
    masked = Masker(secrets).body(body)
    assert masked == body or b"*" in masked
    assert Masker([]).body(body) is body
