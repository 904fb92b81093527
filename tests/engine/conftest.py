"""Rigs that are closed after their test."""

from collections.abc import Iterator

import pytest

from tests.engine.host import Rig, Rigs


@pytest.fixture
def rigs() -> Iterator[Rigs]:
    made: list[Rig] = []

    def make(*texts: str, **options: object) -> Rig:
        made.append(Rig(*texts, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for rig in made:
        rig.close()
