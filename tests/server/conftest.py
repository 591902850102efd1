from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.fakes import FakeBackend
from tests.server.live import Live


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def live(backend: FakeBackend) -> Iterator[Live]:
    with Live(backend) as server:
        yield server
        backend.gate.open()
