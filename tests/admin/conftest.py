"""What tests of the admin port share: one that is only asked, and status pages that are not waited for."""

import re
from collections.abc import Iterator
from typing import cast

import pytest

from amqtt_rest_bridge.admin import pages
from tests.support.admin_client import Admin, admin_of, server_route
from tests.support.doors import DOORS, Hosting
from tests.support.embedded_broker import hosting as in_broker


@pytest.fixture(params=DOORS)
def hosting(request: pytest.FixtureRequest) -> Hosting:
    """Runs the bridge of a test within a broker, and in another test as a worker beside one."""
    return cast(Hosting, request.param)


@pytest.fixture(scope="module")
def hurried() -> Iterator[None]:
    """Hand an admin port of this process, and its pages, times of a tenth of a second."""
    read = pages._asset
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "CHANGE_SECONDS", 0.1)
        patch.setattr(pages, "_asset", lambda name: re.sub(rb"(RETR\w+_MS = )\d+", rb"\g<1>100", read(name)))
        yield


@pytest.fixture(scope="module")
def idle() -> Iterator[Admin]:
    """The admin port of a bridge with one route, of server mode, which tests only ask."""
    with in_broker(server_route(), admin_port=0) as host:
        yield admin_of(host)
