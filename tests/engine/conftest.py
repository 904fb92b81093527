"""Rigs that are closed after their test."""

from collections.abc import Callable, Iterator

import pytest

from tests.engine.host import Rig


@pytest.fixture
def rigs() -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(*texts: str, **options: object) -> Rig:
        rig = Rig(*texts, **options)  # type: ignore[arg-type]
        made.append(rig)
        return rig

    yield make
    for rig in made:
        rig.close()
