"""What tests of pages share: a status page that is not waited for."""

import re
from collections.abc import Iterator

import pytest

from amqtt_rest_bridge.admin import pages


@pytest.fixture(scope="module")
def hurried() -> Iterator[None]:
    """Hand an admin port of this process, and its pages, times of a tenth of a second."""
    read = pages._read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "CHANGE_SECONDS", 0.1)
        patch.setattr(pages, "_read", lambda name: re.sub(rb"(RETR\w+_MS = )\d+", rb"\g<1>100", read(name)))
        yield
