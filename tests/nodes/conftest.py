"""The backend that VNode tests run on: the NumPy reference, whose ops give the meaning of all others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.nodes.contract import Context
from tests.contracts.vnode import context


@pytest.fixture(scope="session")
def backend() -> Iterator[ReferenceBackend]:
    """One reference backend for all tests: it keeps nothing between calls."""
    made = ReferenceBackend(threads=1)
    yield made
    made.close()


@pytest.fixture
def ctx(backend: ReferenceBackend) -> Context:
    """A training context with a fixed key."""
    return context(backend)
