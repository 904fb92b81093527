"""The first record of a CSV payload (RFC 4180). Pure."""

import re

MAX_FIELDS = 10_000
"""Fields that are read of a record: a placeholder counts up to 9999."""

_FIELD = re.compile(r'(?:"((?:[^"]|"")*+)"|([^,\r\n]*+))(,|(?=[\r\n])|\Z)')


def first_record(text: str) -> list[str]:
    """Return the fields of the first record; none for an empty text. Spaces belong to their field.

    A quote inside a field that does not begin with one is taken as it is, as spreadsheets write it now and then.

    Raises:
        ValueError: A quoted field is not closed, or text follows its closing quote.
    """
    text = text.removeprefix("\ufeff")
    fields: list[str] = []
    position = 0
    more = bool(text)
    while more and len(fields) < MAX_FIELDS:
        found = _FIELD.match(text, position)
        if found is None or (found[1] is None and found[2].startswith('"')):
            raise ValueError("a quoted field is not closed, or text follows its closing quote")
        fields.append(found[2] if found[1] is None else found[1].replace('""', '"'))
        position, more = found.end(), found[3] == ","
    return fields
