"""One reference backend for all simulated PNodes: they run one after the other anyway."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dcnr_app.engine.reference import ReferenceBackend


@pytest.fixture(scope="session")
def backend() -> Iterator[ReferenceBackend]:
    """A backend with one thread."""
    made = ReferenceBackend(threads=1)
    yield made
    made.close()
