"""Load route files in a process of its own, while the broker goes on: `python -m` with JSON in, pickle out."""

import json
import os
import pickle
import sys
from pathlib import Path

from amqtt_rest_bridge.errors import BridgeError
from amqtt_rest_bridge.language import loader, sources


def main() -> int:
    """Load what the argument names and write the pickled `LoadResult`; on an error say why on stderr, status 1."""
    wanted = json.loads(sys.argv[1])
    try:
        texts = sources.read(wanted["paths"])
    except BridgeError as error:
        print(error, file=sys.stderr)  # noqa: T201  # read by the broker
        return 1
    result = loader.load(texts, environment=os.environ, secrets_dir=Path(wanted["secrets_dir"]))
    sys.stdout.buffer.write(pickle.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
