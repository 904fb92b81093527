"""The floor of the API's rates: the same server, and an application that answers constant bytes of a given size."""

import argparse
from collections.abc import Callable, Iterable

from template_api.serving.service import ApiServer
from template_api.serving.supervisor import listening_socket


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--size", type=int, default=1000)
    options = parser.parse_args()
    body = b"x" * options.size
    headers = [("Content-Type", "application/octet-stream"), ("Content-Length", str(len(body)))]

    def app(_environ: object, start_response: Callable[..., object]) -> Iterable[bytes]:
        start_response("200 OK", headers)
        return [body]

    ApiServer(app, listening_socket("127.0.0.1", options.port)).run()


if __name__ == "__main__":
    main()
