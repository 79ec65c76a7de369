"""The SQLite store's own promises: durability, readers beside a writer, versions, damage and refusals."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcnr_app.errors import StoreError
from dcnr_app.settings import Home
from dcnr_app.store.database import Database
from dcnr_app.store.sqlite import SqliteStore, control_settings
from dcnr_app.store.sqlite_errors import explain
from tests.contracts.store import FixedClock


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """An empty home."""
    made = Home(tmp_path / "home with space % and ?")
    made.ensure()
    return made


@pytest.fixture
def writer(home: Home) -> Iterator[SqliteStore]:
    """The home's writing store; gives up waiting for locks soon."""
    store = SqliteStore.open_writer(home, FixedClock(), busy_timeout_ms=50)
    yield store
    store.close()


def test_control_is_synced_fully_and_metrics_normally(tmp_path: Path) -> None:
    for level, number in (("FULL", 2), ("NORMAL", 1)):
        settings = control_settings()
        settings = type(settings)(migrations=settings.migrations, synchronous=level, if_lost="")  # type: ignore[arg-type]
        database = Database(tmp_path / level, settings)
        assert database.rows("PRAGMA synchronous") == [(number,)]
        assert database.rows("PRAGMA journal_mode") == [("wal",)]
        database.close()
    assert control_settings().synchronous == "FULL"


def test_everything_is_there_after_reopening(home: Home) -> None:
    first = SqliteStore.open_writer(home, FixedClock())
    first.append("s", "e", b"\x00", expected_seq=0)
    first.append_commit("s", 1, b"c", [4], is_skipped=False)
    first.add_metrics("s", 1, {"loss": 1.5}, at_ms=5)
    first.put("t", "k", b"v")
    first.close()
    second = SqliteStore.open_writer(home, FixedClock())
    assert second.read("s")[0].body == b"\x00"
    assert second.append("s", "e", b"", expected_seq=1) == 2
    assert list(second.commits("s")) == [(1, b"c")]
    assert list(second.ledger("s")) == [(1, 4, False)]
    assert list(second.metrics("s")) == [{"step": 1, "at_ms": 5, "values": {"loss": 1.5}}]
    assert second.get("t", "k") == b"v"
    second.close()


@pytest.mark.skipif(os.name == "nt", reason="file modes are POSIX")
def test_database_files_are_private(home: Home, writer: SqliteStore) -> None:
    writer.put("t", "k", b"v")
    for path in home.root.glob("*.sqlite*"):
        assert path.stat().st_mode & 0o077 == 0, path.name


def test_reader_before_anything_exists_is_empty_and_creates_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path / "none")
    reader = SqliteStore.open_reader(home)
    assert list(reader.read("s")) == list(reader.commits("s")) == list(reader.metrics("s")) == []
    assert reader.get("t", "k") is None
    assert list(reader.items("t")) == list(reader.ledger("s")) == []
    assert not home.root.exists()


def test_reader_opened_before_the_first_session_sees_it(home: Home) -> None:
    reader = SqliteStore.open_reader(home)
    assert list(reader.read("s")) == []
    home.control.touch()
    assert list(reader.read("s")) == []
    store = SqliteStore.open_writer(home, FixedClock())
    store.append("s", "e", b"1", expected_seq=0)
    assert [event.body for event in reader.read("s")] == [b"1"]
    reader.close()
    store.close()


def test_reader_sees_commits_at_once_but_no_open_transaction(home: Home, writer: SqliteStore) -> None:
    reader = SqliteStore.open_reader(home)
    for step in range(1, 6):
        writer.append_commit("s", step, b"%d" % step, [step], is_skipped=False)
        assert list(reader.commits("s"))[-1] == (step, b"%d" % step)
    other = sqlite3.connect(home.control, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("DELETE FROM commits")
    assert len(reader.commits("s")) == 5
    other.execute("ROLLBACK")
    other.close()
    reader.close()


def test_reader_works_after_the_writer_closed(home: Home) -> None:
    store = SqliteStore.open_writer(home, FixedClock())
    store.put("t", "k", b"v")
    store.close()
    reader = SqliteStore.open_reader(home)
    assert reader.get("t", "k") == b"v"
    reader.close()


def test_open_reader_does_not_hinder_the_writer(home: Home, writer: SqliteStore) -> None:
    writer.put("t", "k", b"1")
    long_read = sqlite3.connect(home.control, isolation_level=None)
    long_read.execute("BEGIN")
    long_read.execute("SELECT * FROM entries").fetchall()
    assert writer.put("t", "k", b"2")
    long_read.close()


def test_reader_refuses_to_write(home: Home, writer: SqliteStore) -> None:
    writer.put("t", "k", b"1")
    reader = SqliteStore.open_reader(home)
    with pytest.raises(StoreError, match="reading only"):
        reader.append("s", "e", b"", expected_seq=0)
    with pytest.raises(StoreError, match="reading only"):
        reader.add_metrics("s", 1, {}, at_ms=0)
    assert reader.get("t", "k") == b"1"


def test_newer_schema_is_refused_and_left_alone(home: Home, writer: SqliteStore) -> None:
    writer.put("t", "k", b"v")
    writer.close()
    newer = sqlite3.connect(home.control)
    newer.execute("UPDATE schema_version SET version = 999")
    newer.commit()
    newer.close()
    before = home.control.read_bytes()
    with pytest.raises(StoreError, match=r"newer dcnr-app \(schema 999(.|\n)*pip install --upgrade"):
        SqliteStore.open_writer(home, FixedClock())
    reader = SqliteStore.open_reader(home)
    with pytest.raises(StoreError, match="newer dcnr-app"):
        reader.get("t", "k")
    assert home.control.read_bytes() == before


def test_database_is_migrated_in_one_transaction(tmp_path: Path) -> None:
    settings = control_settings()
    kind = type(settings)
    first = kind(migrations=(("CREATE TABLE a (x)",),), synchronous="FULL", if_lost="")
    Database(tmp_path / "d", first).close()
    broken = kind(
        migrations=(*first.migrations, ("CREATE TABLE b (x)", "not sql")), synchronous="FULL", if_lost=""
    )
    with pytest.raises(StoreError, match=r"refused(.|\n)*syntax error"):
        Database(tmp_path / "d", broken)
    database = Database(tmp_path / "d", first)
    assert database.rows("SELECT name FROM sqlite_master WHERE name IN ('a', 'b')") == [("a",)]
    database.close()
    second = kind(migrations=(*first.migrations, ("CREATE TABLE b (x)",)), synchronous="FULL", if_lost="")
    database = Database(tmp_path / "d", second)
    assert database.rows("SELECT version FROM schema_version") == [(2,)]
    assert database.rows("SELECT * FROM b") == []
    database.close()


def test_database_locked_by_another_program_is_said_and_nothing_is_kept(
    home: Home, writer: SqliteStore
) -> None:
    other = sqlite3.connect(home.control, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked by another program"):
        writer.append("s", "e", b"", expected_seq=0)
    other.execute("ROLLBACK")
    other.close()
    assert writer.append("s", "e", b"", expected_seq=0) == 1


def test_full_disk_keeps_nothing_of_the_write_and_all_before(tmp_path: Path) -> None:
    database = Database(tmp_path / "d", control_settings())
    store = SqliteStore(database, database, FixedClock())
    store.append_commit("s", 1, b"kept", [1], is_skipped=False)
    with database.transaction() as connection:
        ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    ((limit,),) = database.rows(f"PRAGMA max_page_count={pages}")
    assert limit == pages
    with pytest.raises(StoreError, match="disk is full"):
        store.append_commit("s", 2, bytes(100_000), [2], is_skipped=False)
    database.rows("PRAGMA max_page_count=1000000")
    assert list(store.commits("s")) == [(1, b"kept")]
    assert list(store.ledger("s")) == [(1, 1, False)]
    store.append_commit("s", 2, bytes(100_000), [2], is_skipped=False)
    store.close()


@pytest.mark.parametrize("damage", ["header", "pages", "last page", "garbage"])
def test_damaged_file_is_named_with_advice(home: Home, writer: SqliteStore, damage: str) -> None:
    for i in range(40):
        writer.put("t", str(i), bytes([i]) * 1000)
    writer.close()
    raw = bytearray(home.control.read_bytes())
    if damage == "header":
        raw[0:16] = bytes(16)
    elif "page" in damage:
        for at in range(4096 if damage == "pages" else len(raw) - 4096, len(raw), 4096):
            raw[at : at + 64] = b"\xa5" * 64
    else:
        raw = bytearray(b"not a database at all" * 500)
    home.control.write_bytes(raw)
    with pytest.raises(StoreError, match=r"damaged(.|\n)*move control.sqlite") as caught:
        SqliteStore.open_writer(home, FixedClock())
    assert str(home.control) in str(caught.value)
    assert home.control.read_bytes() == raw


def test_metrics_that_are_damaged_do_not_keep_control_open(home: Home, writer: SqliteStore) -> None:
    writer.close()
    home.metrics.write_bytes(b"garbage " * 1000)
    with pytest.raises(StoreError, match="only the charts"):
        SqliteStore.open_writer(home, FixedClock())
    home.metrics.unlink()
    SqliteStore.open_writer(home, FixedClock()).close()


def test_read_only_file_is_said(home: Home, writer: SqliteStore) -> None:
    writer.close()
    reader = sqlite3.connect(f"{home.control.as_uri()}?mode=ro", uri=True)
    with pytest.raises(sqlite3.OperationalError) as caught:
        reader.execute("DELETE FROM events")
    reader.close()
    said = explain(caught.value, home.control, "")
    assert "cannot be written" in said.what
    assert "write permission" in said.fix


def test_folder_in_the_place_of_the_database_is_said(home: Home) -> None:
    home.control.mkdir()
    with pytest.raises(StoreError, match="cannot be written or opened"):
        SqliteStore.open_writer(home, FixedClock())


def test_after_a_disk_error_all_writes_are_refused(tmp_path: Path) -> None:
    database = Database(tmp_path / "d", control_settings())
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    with pytest.raises(StoreError, match="disk failed"), database.transaction():
        raise error
    with pytest.raises(StoreError, match="disk failed"), database.transaction():
        pytest.fail("a write was let through")
    assert database.rows("SELECT 1") == [(1,)]
    database.close()


def test_transaction_has_the_write_lock_before_its_first_read(tmp_path: Path) -> None:
    first = Database(tmp_path / "d", control_settings())
    second = Database(tmp_path / "d", control_settings(busy_timeout_ms=0))
    with first.transaction(), pytest.raises(StoreError, match="locked"), second.transaction():
        pytest.fail("two transactions at once")
    with second.transaction():
        pass
    first.close()
    second.close()


def test_exception_inside_a_transaction_undoes_it(tmp_path: Path) -> None:
    database = Database(tmp_path / "d", control_settings())
    with pytest.raises(KeyboardInterrupt), database.transaction() as connection:
        connection.execute("INSERT INTO events VALUES ('s', 1, 'e', x'', 0)")
        raise KeyboardInterrupt
    assert database.rows("SELECT * FROM events") == []
    database.close()
