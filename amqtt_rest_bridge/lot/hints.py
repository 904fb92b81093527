"""Hints for faults: what was meant by a text that cannot be used as it is written. Pure.

| what is wrong | explained by | for |
|---|---|---|
| a setting that no block has | `explain_unknown_setting` | `definitions` |
| a text that continues a value, without quotes or GET | `explain_unreadable_value` | `definitions` |
| any other text that is not a statement | `explain_junk` | `definitions` |
| a body that is almost JSON | `explain_broken_json` | `texts` |
| what looks like a placeholder | `explain_suspect` | `texts`, `condition_reader` |

They return what is wrong, and the hint: what to write instead. They return None for a text that may be correct.
"""

import json
import re
from typing import Final

from amqtt_rest_bridge.errors import FaultCode, on_one_line
from amqtt_rest_bridge.lot.forms import DURATION_FORM
from amqtt_rest_bridge.lot.grammar.parsing import Junk, Level, Piece, StatementNode
from amqtt_rest_bridge.lot.placeholders.kinds import PLACEHOLDERS, Mode, PlaceholderKind, Suspect, recognise
from amqtt_rest_bridge.lot.placeholders.text import Place
from amqtt_rest_bridge.lot.settings_table import PARAMETERS, BlockKind
from amqtt_rest_bridge.spelling import closest, question


def explain_unknown_setting(name: str, kind: BlockKind) -> tuple[list[str], str]:
    """Return the settings that an unknown name may mean, and the hint.

    These are tried in order: names of things that are not settings (`_ADVICE`), names that other programs have for a
    setting (`_OTHER_NAMES`), and settings with a similar name, first of this block.
    """
    plain = name.upper().replace("-", "_")
    for words, settings, advice in _ADVICE:
        if plain in words.split():
            return [setting for setting in settings if setting in PARAMETERS[kind]], advice
    known = [(home, setting) for home in [kind, *BlockKind] for setting in PARAMETERS[home]]
    meant = next((place for place in known if plain in _OTHER_NAMES.get(place[1], "").split()), None)
    if meant is None and (found := closest(name, PARAMETERS[kind], parts=True)):
        meant = (kind, found)
    if meant is None and (found := closest(name, [setting for _, setting in known], parts=True)):
        meant = next(place for place in known if place[1] == found)
    if meant is None:
        return [], hint_of_settings(kind)
    return [meant[1]], question(meant[1]) if meant[0] is kind else f"perhaps {meant[1]}, which belongs in {meant[0]}"


def hint_of_settings(kind: BlockKind) -> str:
    """Return the hint that names all settings of a block."""
    return f"{kind} has {', '.join(PARAMETERS[kind])}"


_OTHER_NAMES = {
    "BASE_ADDRESS": "URL URI BASE_URL BASE_URI API_URL SERVER_URL TARGET_URL HOST HOSTNAME SERVER",
    "ENABLE_CLIENT": "CLIENT_MODE CLIENT_ENABLED",
    "ENABLE_SERVER": "SERVER_MODE SERVER_ENABLED",
    "REQUEST_TIMEOUT": "TIMEOUT TIMEOUT_SECONDS TIMEOUT_MS HTTP_TIMEOUT CONNECT_TIMEOUT READ_TIMEOUT",
    "SOURCE_TOPIC": "INPUT_TOPIC IN_TOPIC SUBSCRIBE SUBSCRIBE_TOPIC LISTEN MQTT_TOPIC TRIGGER FROM",
    "DESTINATION_TOPIC": "OUTPUT_TOPIC OUT_TOPIC TARGET_TOPIC RESPONSE_TOPIC RESULT_TOPIC PUBLISH PUBLISH_TOPIC TO",
    "METHOD": "VERB HTTP_METHOD REQUEST_METHOD",
    "ENDPOINT": "PATH URL URI ROUTE URL_PATH RESOURCE",
    "BODY": "DATA REQUEST_BODY CONTENT JSON",
    "WHEN": "IF CONDITION FILTER WHERE",
    "EVERY": "INTERVAL SCHEDULE CRON PERIOD POLL",
    "RATE_LIMIT": "RATE THROTTLE",
    "BREAKER": "CIRCUIT_BREAKER CIRCUIT",
}
"""The names that other programs have for a setting."""
_HEADER_ADVICE = 'write WITH HEADERS, and below it ADD "X-API-Key" "..." or ADD "Authorization" "Bearer ..."'
_ADVICE: Final[tuple[tuple[str, list[str], str], ...]] = (
    ("ENABLE MODE", ["ENABLE_CLIENT", "ENABLE_SERVER"], 'write ENABLE_CLIENT "true", ENABLE_SERVER "true" or both'),
    ("API_KEY APIKEY TOKEN BEARER BEARER_TOKEN ACCESS_TOKEN", [], f"in the event, {_HEADER_ADVICE}"),
    (
        "TOPIC",
        ["SOURCE_TOPIC", "DESTINATION_TOPIC"],
        "write SOURCE_TOPIC for messages that come in, DESTINATION_TOPIC for those that go out",
    ),
    ("HEADER", ["HEADERS"], "write WITH HEADERS, and below it ADD <name> <value>"),
    (
        "AUTH AUTHENTICATION CREDENTIALS",
        [],
        f"write USERNAME and PASSWORD in REST_API_CONFIG; or in the event, {_HEADER_ADVICE}",
    ),
    (
        "CONTENT_TYPE",
        [],
        'write ADD "Content-Type" "..." below WITH HEADERS, or DEFAULT_CONTENT_TYPE in REST_API_CONFIG',
    ),
    ("QUERY PARAMS QUERY_PARAMS PARAMETERS", [], 'write it in ENDPOINT, as in "/search?q={payload}"'),
)
"""Names of things that are not settings; for each row of names the settings that may be meant, and the hint."""

HEADERS_IN_AN_EVENT = (
    "write it in each event, below ADD EVENT <name>; AUTHORIZATION and USERNAME, in REST_API_CONFIG, are sent by all"
)
SPACES = "a value with spaces needs quotes"
COMMENT_HINT = "a comment begins with // or --"
"""What to do about text that begins with #."""
NO_COMMA = "leave the comma out: a line break or a space is enough"
FENCE_HINT = "delete the line: ``` belongs to Markdown"
STRAIGHT = "strings need straight quotes: \" or '"
TYPOGRAPHIC_QUOTES = "“”„‟‘’‚‛«»`´"
_FIRST_CHARACTERS = {
    "#": COMMENT_HINT,
    ",": NO_COMMA,
    ";": "leave the ; out: a line break or a space is enough; a comment begins with // or --",
    "<": COMMENT_HINT,
    "{": "leave { out: a block ends where the next one begins",
    "}": "leave } out: a block ends where the next one begins",
    "-": "leave the - out",
}
_JOINING_MARKS = ("&", ".", "..", "||", "~")  # which join texts in other languages
_ROUTE = re.compile(r"ROUTE\s+[^\s\"']+\Z", re.IGNORECASE)
_PLUS_FIRST = re.compile(r"(?:(?:WITH|ADD)\s+[^\s+]+\s*)?\+", re.IGNORECASE)


def hint_for_extra_text(pieces: tuple[Piece, ...], hint: str) -> str:
    """Return the hint for text where no text belongs, by its first character, which often is the # of a comment."""
    return _FIRST_CHARACTERS.get(pieces[0].text[0], hint) if not pieces[0].is_string else hint


def explain_junk(text: str, before: StatementNode | None) -> tuple[str, str | None]:
    """Return message and hint for a text that is not a statement.

    What the text itself shows comes first, such as a + at its end. Then the statement before it decides: the text may
    be a part of its value.
    """
    if text.endswith("+"):
        hint = 'a value follows it: "text", GET ENV "X" or GET SECRET "X"'
        return f"nothing follows the + in {on_one_line(text, 40)}", hint
    if text.upper() in ("WITH", "ADD"):
        return f"{text} is not followed by a name", None
    shown = on_one_line(text.split("\n", 1)[0].rstrip(), 40)
    if _PLUS_FIRST.match(text):
        return f"+ is not between two values: {shown}", None
    if text.startswith("```"):
        return f"unexpected text: {shown}", FENCE_HINT
    if text[:1] in TYPOGRAPHIC_QUOTES:
        return f"unexpected text: {shown}", STRAIGHT
    if text[:6].upper() == "DEFINE":
        return f"unexpected text: {shown}", "a definition begins at the start of a line"
    if verb := closest(text.split()[0], ["WITH", "ADD"]):
        return f"unexpected text: {shown}", question(verb)
    by_character = _FIRST_CHARACTERS.get(shown[0])
    if before is None or not before.pieces:
        hint = by_character or "a route continues with ADD REST_API_CONFIG or ADD EVENT <name>"
        return f"unexpected text: {shown}", hint
    if before.level is Level.BLOCK and before.name.text == BlockKind.EVENT:
        return f"unexpected text after ADD EVENT {on_one_line(before.pieces[0].text)}: {shown}", by_character
    first, last = shown.split()[0], before.pieces[-1]
    hint = by_character or (DURATION_FORM if before.name.text.upper() == "EVERY" else SPACES)
    if (last.is_string or last.source) and (first in _JOINING_MARKS or shown[0] in "'\"" or first.upper() == "GET"):
        hint = "write + between the parts of a value"
    elif first.upper() == "REM":
        hint = COMMENT_HINT
    elif first.upper() == "END":
        hint = f"leave {first} out: a block ends where the next one begins"
    elif _ROUTE.match(shown):
        hint = f"write DEFINE before {shown}"
    elif before.name.text.upper() == "HEADERS":
        hint = f"write it in the line below: ADD {on_one_line(last.text)} {shown}"
    return f"unexpected text after the value of {before.name.text}: {shown}", hint


_GET_AS_A_CALL = re.compile(
    r"(?:GET\s+)?(?P<source>env|secret|getenv)\s*\(\s*[\"'](?P<name>[\w.-]+)[\"']?\)?", re.IGNORECASE
)
_DOUBLE_QUOTES = "strings of JSON are in double quotes: write ' around it and \" inside, as in '{\"city\": 1}'"
_OTHER_QUOTE = {"'": '"', '"': "'"}


_Mistake = tuple[FaultCode, int, str, str]  # code, place, message and hint


def explain_unreadable_value(junk: Junk, before: StatementNode | None) -> _Mistake | None:
    """Explain a text that continues the value of the statement before it, without quotes or GET."""
    piece = before.pieces[-1] if before is not None and before.pieces else None
    if before is None or piece is None or piece.source:
        return None
    text, name, word = junk.text, before.name.text, piece.text.upper()
    whole = piece.text + text if junk.offset == piece.offset + len(piece.text) else f"{piece.text} {text}"
    if not piece.is_string and (call := _GET_AS_A_CALL.match(whole)):
        source = "SECRET" if call["source"].upper() == "SECRET" else "ENV"
        hint = f'write GET {source} "{call["name"]}"'
        return FaultCode.QUOTES, piece.offset, f"{on_one_line(call[0], 40)} is not a value", hint
    shown = on_one_line(text.split("\n", 1)[0].rstrip(), 40)
    if text[0] in _OTHER_QUOTE and word in ("ENV", "SECRET"):
        message, hint = f"{piece.text} {shown} is not a value", f"write GET {word} {shown}"
        return FaultCode.MISSING_KEYWORD, piece.offset, message, hint
    if text[0] in _OTHER_QUOTE and word == "GET" and name.upper() != "METHOD":
        message, hint = f"GET {shown} does not say of what", f"write GET ENV {shown} or GET SECRET {shown}"
        return FaultCode.MISSING_KEYWORD, piece.offset, message, hint
    return _explain_quotes(junk, piece, name)


def _explain_quotes(junk: Junk, piece: Piece, name: str) -> _Mistake | None:
    """Explain quotes that are missing, too many or not straight, where a text follows a value without a space."""
    text, end = junk.text, piece.offset + len(piece.text)
    if junk.offset != end or (text[0] in _FIRST_CHARACTERS and "'" not in text and '"' not in text):
        return None
    if piece.is_string:
        quote = piece.text[0]
        message = f"the string of {name} ends at this {quote}, and more text follows"
        hint = f"write {_OTHER_QUOTE[quote]} around a text that holds {quote}, or \\{quote} for each {quote} in it"
        if piece.text[:2] in ('"{', '"['):
            hint = 'write \' around JSON, as in \'{"city": 1}\', or \\" for each " in it'
        elif piece.text[:2] in ("'{", "'["):
            hint = _DOUBLE_QUOTES
        if name.upper() == "WHEN":
            hint = f"write {_OTHER_QUOTE[quote]} around the condition"
        if len(piece.text) == 2 and text[0] == quote:
            message = f"{quote * 3} begins no string"
            hint = "write a single quote where it begins and where it ends; it may go over several lines"
            return FaultCode.QUOTES, piece.offset, message, hint
        return FaultCode.QUOTES, end - 1, message, hint
    quote = text[0] if text[0] in _OTHER_QUOTE else '"'
    message = f"the value of {name} holds quotes but has none around it"
    hint = f"write {_OTHER_QUOTE[quote]} where it begins and where it ends"
    if piece.text[0] in TYPOGRAPHIC_QUOTES:
        message, hint = f"{piece.text[0]} begins no string", STRAIGHT
    elif junk.open_strings and not text.strip(quote):  # not shown: it may be a password
        message, hint = f"the {quote} before the value of {name} is missing", f"write {quote} where it begins"
    return FaultCode.QUOTES, piece.offset, message, hint


_NO_JSON = "if it is not meant to be JSON, say so with a Content-Type header or DEFAULT_CONTENT_TYPE"
_JSON_STRING_FAULTS = {
    "Unterminated string": ('the string that begins here has no " at its end', 'write " where it ends'),
    "Invalid control": (
        "a string holds a line break or another control character",
        r'write " where it ends, or \\n for a line break',
    ),
    "Invalid \\": (r"a string holds a \ that begins no escape of JSON", r"write \\\\ for a \ in a string"),
}
"""Faults in a string of JSON, by how the message of Python's reader begins: what is wrong, and the hint."""
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_CLOSING = {"{": "}", "[": "]"}
_JSON_WORDS = {"True": "true", "False": "false", "None": "null", "undefined": "null"}
_BARE_WORD = re.compile(r"[A-Za-z_$][\w$.-]*")


def explain_broken_json(text: str, fault: Exception, mode: Mode) -> tuple[int, str, str]:
    """Return where a text is not JSON, what is wrong there, and the hint; `fault` is the error of Python's reader.

    The reader's place is not always that of the mistake: for a comma that is one too many, or a bracket that is
    missing, the text before and after its place shows more.
    """
    if not isinstance(fault, json.JSONDecodeError):
        return 0, "it cannot be read", _NO_JSON
    if not text.lstrip().startswith(("{", "[", '"')):
        return 0, "it begins with neither { nor [", _NO_JSON
    before, after = text[: fault.pos].rstrip(), text[fault.pos :].lstrip(" \t\r\n,")
    place, first = len(text) - len(after), after[:1]
    for message, explained in _JSON_STRING_FAULTS.items():
        if fault.msg.startswith(message):
            return fault.pos, *explained
    if fault.msg == "Extra data":
        if first == ":":
            return 0, "{ is missing", "write { at its beginning"
        if first in ("}", "]"):
            return place, f"this {first} closes nothing", f"leave {first} out"
        return place, "more text follows it", _NO_JSON
    missing = ""  # the brackets that are open before the fault would be closed by these, the innermost first
    for character in _JSON_STRING.sub("", before):
        if character in _CLOSING:
            missing = _CLOSING[character] + missing
        elif character == missing[:1]:
            missing = missing[1:]
    is_at_comma = "delimiter" not in fault.msg and "," in text[fault.pos : place]
    if is_at_comma or (before.endswith(",") and first in ("", "}", "]")):
        comma = text.rindex(",", 0, place)
        return comma, "this comma is not between two values", "leave the comma out, or write what is missing"
    if not first and not before.endswith((":", "{", "[")):
        return len(before), f"{missing} is missing", f"write {missing} at its end"
    if first in ("}", "]") and first != missing[:1]:
        return place, f"{missing[:1]} is missing before this {first}", f"write {missing[:1]}"
    return place, *_explain_json_item(fault.msg, before, after, mode)


def _explain_json_item(message: str, before: str, after: str, mode: Mode) -> tuple[str, str]:
    """Return what is wrong with a name or value of JSON, which `after` begins with, and the hint."""
    if "delimiter" in message:
        return ("a comma is missing", "write , here") if "','" in message else ("a colon is missing", "write : here")
    if after.startswith("'"):
        return "this string is in single quotes", _DOUBLE_QUOTES
    source, word = "body" if mode is Mode.SERVER else "value", _BARE_WORD.match(after)
    if word is None:
        return (
            ("a value is missing", "write null for none")
            if "value" in message
            else ("a name in double quotes is missing", _DOUBLE_QUOTES)
        )
    if before.endswith("{") and after[word.end() :].lstrip().startswith("}"):
        meant = _closest_placeholder(word[0], mode) or f"{source}.json.{word[0]}"
        return f"{{{word[0]}}} is not a placeholder", f"write {{{meant}}}"
    if recognise(word[0].lower(), mode):
        return f"{word[0]} has no braces", f"write {{{word[0].lower()}}}"
    written = _JSON_WORDS.get(word[0], f'"{word[0]}"')
    return f"{word[0]} has no quotes" if word[0] not in _JSON_WORDS else f"{word[0]} is not JSON", f"write {written}"


_BRACKETS = re.compile(r"\.?\[\s*['\"]?([^\[\]'\"]*)['\"]?\s*\]")
_CLIENT_SYNONYMS = {
    "message": "payload",
    "msg": "payload",
    "json": "value.json",
    "csv": "payload.csv",
    "now": "timestamp",
}
_SYNONYMS = {
    Mode.CLIENT: _CLIENT_SYNONYMS,
    Mode.RESULT: _CLIENT_SYNONYMS,
    Mode.SERVER: {"message": "body", "msg": "body", "json": "body.json", "now": "timestamp"},
    Mode.BATCH: {"messages": "batch", "payloads": "batch", "items": "batch"},
}
_BODIES = (Place.JSON, Place.FORM, Place.TEXT)


def explain_suspect(suspect: Suspect, place: Place, mode: Mode) -> tuple[str, str | None] | None:
    """Return message and hint for what looks like a placeholder, None when it may be meant as text."""
    if not suspect.closed:
        return f"{suspect.written} is not closed and stays text", question(f"{suspect.written}}}")
    if mode is Mode.BATCH and recognise(suspect.name, Mode.CLIENT):
        return None  # `blocks` reports it as an error
    name = suspect.name
    if suspect.has_spaced_bar and recognise(name.strip(), mode):
        message = (
            f"{suspect.written[:-1]}{suspect.default}}} has a space beside its |, which belongs to name or default"
        )
        return message, question(f"{{{name.strip()}|{suspect.default[1:].strip()}}}")
    if recognise(name, mode) is None or "{" not in suspect.written:
        return _explain_of_another_mode(suspect, mode) or _explain_unknown(suspect, place, mode)
    # A placeholder that is written as in another language.
    if (dotted := with_dots(name)) != name:
        return f"{{{name}}} asks for a key that holds brackets", question(f"{{{dotted}}}")
    if suspect.written.startswith("${"):
        hint = f'write {{{name}}}, or "$" + "{{{name}}}" if the $ is meant'
        return f"{suspect.written}: the $ stays as text", hint
    return f"{suspect.written}: the outer braces stay as text", question(f"{{{name}}}")


def _explain_of_another_mode(suspect: Suspect, mode: Mode) -> tuple[str, str | None] | None:
    """Return message and hint for a placeholder that another mode has, None for any other."""
    name = suspect.name.strip()
    written = suspect.written.replace(suspect.name, name)
    if mode is Mode.CLIENT and name.startswith("response.") and recognise(name, Mode.RESULT):
        message = f"{written} stays as text: the request is sent before there is a response"
        return message, "PAYLOAD and DESTINATION_TOPIC may hold it"
    if mode is Mode.CLIENT and recognise(name, Mode.BATCH):
        message = f"{written} stays as text: it belongs in BODY of an event with BATCH_SIZE"
        return message, "set BATCH_SIZE, as in WITH BATCH_SIZE '500', or write {payload} for one message"
    other = Mode.CLIENT if mode is Mode.SERVER else Mode.SERVER
    there = recognise(name, other)
    if there is not None:
        own = next((kind for kind in _kinds(mode) if kind.root == there.root), None)
        hint = f"write {{{'.'.join(filter(None, [own.names[0], there.argument]))}}}" if own else None
        if mode is Mode.CLIENT and there.root == "path.x":
            hint = (
                f"write {{topic.{there.argument}}}" if there.argument.isdigit() else "{topic.2} is a level of the topic"
            )
        return f"{written} exists only in {other} mode and stays as text", hint
    return None


def _explain_unknown(suspect: Suspect, place: Place, mode: Mode) -> tuple[str, str | None] | None:
    """Return message and hint for a text that is not a placeholder, None when it may be meant as text."""
    name = suspect.name.strip()
    written = suspect.written.replace(suspect.name, name)
    message = f"{suspect.written} is not a placeholder and stays text"
    if name.endswith(".") and recognise(f"{name}x", mode):
        return message, f"a name follows the dot, as in {{{name}temperature}}"
    source = "body" if mode is Mode.SERVER else "value"
    dotted = with_dots(name).replace("$.", f"{source}.json.")  # a JSONPath
    meant = dotted if recognise(dotted, mode) else _closest_placeholder(dotted, mode)
    if meant is None and "{" not in written:  # $payload, %payload%, ...
        meant = "body" if mode is Mode.SERVER else "payload"
    if meant is not None:
        return message, question(f"{{{meant}}}")
    if written[0] == "$" and name.isupper():
        return message, f"{{env.{name}}} is an environment variable"
    if suspect.written != f"{{{suspect.name}}}":
        return message, question(f"{{{source}.json.{name}}}")
    if not suspect.whole and (place is Place.JSON or (place in _BODIES and name != suspect.name)):
        # In a JSON body, or in GraphQL with its spaces, words in braces may be meant as text. In any other text they
        # are probably not, and neither if they are a whole string of JSON.
        return None
    if mode is not Mode.SERVER:
        return message, f"{{value.json.{name}}} is a field of the payload"
    return message, f"{{path.{name}}} is a segment of ENDPOINT, {{query.{name}}} a query parameter"


def with_dots(name: str) -> str:
    """Return `a.0.b` for `a[0].b`."""
    return _BRACKETS.sub(r".\1", name)


def _closest_placeholder(name: str, mode: Mode) -> str | None:
    """Return the placeholder that a misspelt name may mean: one that is like its first part, or its first two."""
    known = dict.fromkeys(own for kind in _kinds(mode) for own in kind.names)
    parts = name.split(".")
    heads = [(found, parts[1:]) for found in (_SYNONYMS[mode].get(parts[0].lower()),) if found]
    heads += [(parts[0], parts[1:])] if len(parts) > 1 and parts[0] in known else []
    for count in range(min(2, len(parts)), 0, -1):
        found = closest(".".join(parts[:count]), [own for own in known if own.count(".") == count - 1])
        heads += [(found, parts[count:])] if found else []
    for head, tail in heads:
        if tail and closest(tail[0], ["json", "csv"]):
            head, tail = f"{head}.{closest(tail[0], ['json', 'csv'])}", tail[1:]  # noqa: PLW2901
        for last in (tail, ["json", *tail] if tail else ["x"], ["x"], ["0"], ["1"], []):
            candidate = ".".join([head, *last])
            if recognise(candidate, mode):
                return candidate
    return None


def _kinds(mode: Mode) -> list[PlaceholderKind]:
    return [kind for kind in PLACEHOLDERS if mode in kind.modes]
