"""How many searches there were, and those that found nothing: what `/metrics` shows and the log lists.

Entered by the server's threads, several at once.
"""

import json
import logging
import re
import threading
from typing import Final

from template_api.errors import visible
from template_api.records import TemplateQuery

log = logging.getLogger(__name__)

_LONGEST_LOGGED: Final = 200
# What no search needs and a log must not keep: addresses, words of letters with digits like keys and tokens, long ones.
_SECRET: Final = re.compile(r".*@.*|(?=.*\d)(?=.*[^\W\d]).{16,}|.{33,}")
_WORD: Final = re.compile(r"\S+")


class SearchCounts:
    """Count the searches that have a text.

    Args:
        log_empty: log those that found nothing, at INFO, so that synonyms can be added. Decision: the text is logged as
            typed, without control characters, cut at 200 characters, with `***` for what may be a secret: words with
            an `@`, words of 16 characters or more with letters and digits, words of more than 32 characters.
    """

    def __init__(self, *, log_empty: bool = False) -> None:
        self._lock = threading.Lock()
        self._all = self._empty = 0
        self._log_empty = log_empty

    def count(self, wanted: TemplateQuery, total: int) -> None:
        """Count a search that found `total` templates."""
        with self._lock:
            self._all += 1
            self._empty += not total
        if not total and self._log_empty:
            text = _WORD.sub(lambda word: "***" if _SECRET.fullmatch(word[0]) else word[0], wanted.text)
            # Cut only now: a part of a secret would be a short word.
            log.info("search without a result: %s", visible(json.dumps(text[:_LONGEST_LOGGED], ensure_ascii=False)))

    def metrics(self, *, ready: bool) -> bytes:
        """Return the numbers in Prometheus' text format."""
        rows = (
            ("template_api_searches_total", "counter", "Searches with a text.", self._all),
            ("template_api_empty_searches_total", "counter", "Searches with a text that found nothing.", self._empty),
            ("template_api_ready", "gauge", "1 while searches are answered.", int(ready)),
        )
        return "".join(
            f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n{name} {value}\n" for name, kind, meaning, value in rows
        ).encode()
