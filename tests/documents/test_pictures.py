"""The documents' pictures are screenshots; see `pictures.py`."""

from pathlib import Path

from tests.support.browser import browsing


def test_a_page_is_saved_as_a_picture_of_its_window(chromium: str, tmp_path: Path) -> None:
    with browsing(chromium, takes_pictures=True) as page:
        page.size(320, 200)
        page.open("data:text/html,<p>words")
        page.screenshot(tmp_path / "picture.png")
    header = (tmp_path / "picture.png").read_bytes()[:24]  # its signature, and the chunk with its size
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert [int.from_bytes(header[at : at + 4], "big") for at in (16, 20)] == [320, 200]
