"""What people type into a search box, over the library of the repository; written from its titles.

A query names the templates that are meant, any of which among the first three counts. The share is the check, and not
each query, so that the list of synonyms stays one for all libraries and is not made for these lines. Each file of
`everyday` was written before the search was tried with it.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from template_api.library import TemplateLibrary, import_templates
from template_api.records import Page, Summary, TemplateQuery

LIBRARY = Path(__file__).parents[3] / "conf" / "library"
QUERIES = Path(__file__).with_name("everyday")
LEAST_SHARE = 0.92
# Words for things that the library has nothing of: no answer, or one that says what it was found by.
UNKNOWN = """
bicicleta Fahrrad bicycle zebra Kartoffel espresso dentist guitar piano football recipe wedding insurance passport
dinosaur volcano knitting shampoo mortgage Bundesliga croissant zoo blockchain barcode garage bluetooth zigbee invoice
payroll drone salesforce fingerprint aquarium glucose Rechnung Drucker Staubsauger Aufzug Bibliothek Hundefutter
imprimante facture aspirateur impressora fatura piscina impresora ascensor serrure tradução riego Heizung
""".split()  # noqa: SIM905 - a list of words is easier to read so


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemplateLibrary]:
    url = f"sqlite:///{tmp_path_factory.mktemp('everyday')}/library.db"
    import_templates(url, LIBRARY)
    with closing(TemplateLibrary(url)) as opened:
        yield opened


def asked(library: TemplateLibrary, text: str) -> Page[Summary]:
    return library.find(TemplateQuery(text=text, limit=3))


@pytest.mark.parametrize("file", sorted(QUERIES.iterdir()), ids=lambda file: file.stem)
def test_what_is_meant_is_among_the_first_three(library: TemplateLibrary, file: Path) -> None:
    lines = [line.rsplit(": ", 1) for line in file.read_text("utf-8").splitlines()]
    missed = [
        text
        for text, meant in lines
        if not {each.template.slug for each in asked(library, text).found} & set(meant.split())
    ]
    assert len(missed) <= len(lines) * (1 - LEAST_SHARE), missed


def test_a_word_that_the_library_lacks_is_not_shown_as_if_it_were_found(library: TemplateLibrary) -> None:
    for word in UNKNOWN:
        page = asked(library, word)
        shown = [word.found for each in page.found for word in each.matched if word.typed == word.found]
        assert shown == [], word
        assert page.corrected or page.ignored, word
