"""A consumer of the template library: searches, lists and reads, and asks again where that helps.

    pip install requests
    python library_client.py http://127.0.0.1:8000 weather polling

Put this file into your program: it needs nothing but requests.
"""

import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urljoin

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

TIMEOUT = (3.05, 10)  # seconds to connect, and between two pieces of an answer


class LibraryError(Exception):
    """The API refuses a request, or cannot answer it.

    Attributes:
        status: the HTTP status.
        code: the stable code, such as `invalid_parameter` or `template_not_found`.
        hint: what to do next.
    """

    def __init__(self, status: int, code: str, message: str, hint: str) -> None:
        super().__init__(f"{message} ({code}). {hint}".strip())
        self.status = status
        self.code = code
        self.hint = hint


class LibraryClient:
    """Ask one API.

    Answers that pass by themselves are waited for: 503 (the search index is being built) and 429 as long as their
    Retry-After says, and 502, 504 and lost connections for 0.5, 1, 2 ... seconds. POST is repeated too, since it only
    searches.

    Args:
        base_url: its public address.
        tries: how often a request is repeated.
    """

    def __init__(self, base_url: str, tries: int = 4) -> None:
        self._base_url = base_url.rstrip("/") + "/"
        self._session = requests.Session()
        retry = Retry(
            total=tries,
            status_forcelist=(429, 502, 503, 504),
            allowed_methods=("GET", "POST"),
            backoff_factor=0.5,
            raise_on_status=False,  # the last answer has a hint
        )
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=retry))

    def search(self, text: str, *, limit: int = 20, **filters: Any) -> list[dict[str, Any]]:
        """Return the best results for a text.

        Args:
            text: what is searched for.
            limit: how many at most, 1 to 30.
            filters: such as `difficulty="beginner"` or `tag_ids=["mqtt"]`.

        Raises:
            LibraryError: the API refuses this, or cannot answer it.
        """
        body = {"query": text, "limit": limit, "filters": filters}
        results: list[dict[str, Any]] = self._document("POST", "api/search", json=body)["results"]
        return results

    def templates(self, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Yield all published templates, the newest first, page by page.

        Raises:
            LibraryError: the API refuses this, or cannot answer it.
        """
        response = self._asked("GET", "api/templates", params=parameters)
        while True:
            yield from response.json()["results"]
            if "next" not in response.links:
                return
            response = self._asked("GET", urljoin(response.url, response.links["next"]["url"]))

    def template(self, id_or_slug: str) -> dict[str, Any]:
        """Return one template with the latest cells of its notebooks.

        Raises:
            LibraryError: there is none with this id or slug, or the API cannot answer.
        """
        path = f"api/templates/{quote(id_or_slug, safe='')}"
        template: dict[str, Any] = self._document("GET", path)["template"]
        return template

    def _document(self, method: str, path: str, **request: Any) -> Any:
        return self._asked(method, path, **request).json()

    def _asked(self, method: str, path: str, **request: Any) -> requests.Response:
        response = self._session.request(method, urljoin(self._base_url, path), timeout=TIMEOUT, **request)
        if response.ok:
            return response
        try:
            document = response.json()
            error = document["error"] if isinstance(document["error"], dict) else document
            raise LibraryError(response.status_code, error["code"], error["message"], error["hint"])
        except (ValueError, KeyError):  # of a proxy, or of the server below the API
            raise LibraryError(response.status_code, "no_code", response.reason or "no answer", "") from None


if __name__ == "__main__":
    for found in LibraryClient(sys.argv[1]).search(" ".join(sys.argv[2:])):
        print(f"{found['score']:.2f}  {found['title']}  {found['url']}")
