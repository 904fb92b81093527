"""What schemathesis cannot know: which texts are cursors. Loaded by SCHEMATHESIS_HOOKS in its own process."""

from typing import Any

import schemathesis


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
    """Leave out a made-up cursor of a request that is to be accepted."""
    if case.meta is None or case.meta.generation.mode.is_positive:
        for given in (case.query, case.body):
            if isinstance(given, dict):
                given.pop("cursor", None)
