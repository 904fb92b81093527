"""The tables of the reference are the code's."""

import pytest

from tests.documents.tables import made
from tests.support.documents import page, section


@pytest.mark.parametrize(("name", "heading", "text"), [pytest.param(*one, id=one[1]) for one in made()])
def test_what_is_made_from_the_code_is_in_its_page(name: str, heading: str, text: str) -> None:
    written = section(page(name), heading)
    assert text in written, "python -m tests.documents.tables writes it"
