from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.core.executor import Executor
from tests.contracts.executors import EXECUTORS


@pytest.fixture(scope="module", params=EXECUTORS)
def executor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """Each executor in turn, loaded once for a module and closed at its end."""
    made = EXECUTORS[request.param](tmp_path_factory.mktemp("models"))
    yield made
    made.close()
