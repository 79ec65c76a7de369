"""A database whose schema version is damaged: said in words by writer and reader, and left alone."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dcnr_app.errors import StoreError
from dcnr_app.settings import Home
from dcnr_app.store.sqlite import SqliteStore
from tests.contracts.store import FixedClock


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM schema_version",
        "UPDATE schema_version SET version = 'abc'",
        "UPDATE schema_version SET version = -1",
        "UPDATE schema_version SET version = 0",
        "UPDATE schema_version SET version = 1.5",
        "UPDATE schema_version SET version = x'00'",
        "INSERT INTO schema_version VALUES (1)",
        "ALTER TABLE schema_version RENAME COLUMN version TO other",
    ],
)
def test_schema_version_that_is_no_number_is_said_and_left_alone(tmp_path: Path, damage: str) -> None:
    home = Home(tmp_path / "home")
    home.ensure()
    SqliteStore.open_writer(home, FixedClock()).close()
    connection = sqlite3.connect(home.control)
    connection.execute(damage)
    connection.commit()
    connection.close()
    before = home.control.read_bytes()
    with pytest.raises(StoreError, match=r"damaged(.|\n)*schema version(.|\n)*move control.sqlite"):
        SqliteStore.open_writer(home, FixedClock())
    reader = SqliteStore.open_reader(home)
    with pytest.raises(StoreError, match=r"damaged(.|\n)*schema version(.|\n)*move control.sqlite"):
        reader.get("t", "k")
    reader.close()
    assert home.control.read_bytes() == before
