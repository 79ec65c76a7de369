"""The contract of Store, for each implementation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dcnr_app.settings import Home
from dcnr_app.store.memory import MemoryStore
from dcnr_app.store.sqlite import SqliteStore
from dcnr_app.store.store import Store
from tests.contracts.store import FixedClock, StoreContract


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    if request.param == "memory":
        made: Store = MemoryStore(FixedClock())
    else:
        home = Home(tmp_path / "home")
        home.ensure()
        made = SqliteStore.open_writer(home, FixedClock())
    yield made
    made.close()


class TestStore(StoreContract):
    """Each promise of the contract, once per implementation."""
