"""A home that is deleted or replaced under a writer: the next write notices, and harms nobody else's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dcnr_app.errors import StoreError
from dcnr_app.settings import Home
from dcnr_app.store.lock import HomeLock, holder
from dcnr_app.store.sqlite import SqliteStore
from tests.contracts.store import FixedClock

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows keeps open files from being removed")
LOST = "deleted, moved or replaced while it was in use"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home that does not exist yet."""
    return Home(tmp_path / "home")


@pytest.fixture
def writer(home: Home) -> Iterator[SqliteStore]:
    """The writing store of the locked home, with one commit."""
    with HomeLock(home, "training"):
        store = SqliteStore.open_writer(home, FixedClock())
        store.append_commit("s", 1, b"1", [1], is_skipped=False)
        yield store
        store.close()


def _delete(home: Home) -> None:
    shutil.rmtree(home.root)


def _move(home: Home) -> None:
    home.root.rename(home.root.with_name("elsewhere"))


def _replace_by_a_copy(home: Home) -> None:
    _move(home)
    shutil.copytree(home.root.with_name("elsewhere"), home.root)


def _one_file(name: str) -> Callable[[Home], None]:
    def replace(home: Home) -> None:
        path = home.root / name
        raw = path.read_bytes()
        path.unlink()
        home.root.joinpath("other").write_bytes(b"")  # or the system might give the same inode again
        path.write_bytes(raw)

    return replace


CHANGES = {
    "deleted": _delete,
    "moved": _move,
    "replaced by a copy": _replace_by_a_copy,
    "lock replaced": _one_file("lock"),
    "database replaced": _one_file("control.sqlite"),
    "log replaced": _one_file("control.sqlite-wal"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_the_next_write_after_the_home_was_lost_is_refused(
    home: Home, writer: SqliteStore, change: Callable[[Home], None]
) -> None:
    change(home)
    with pytest.raises(StoreError, match=LOST) as caught:
        writer.append_commit("s", 2, b"2", [2], is_skipped=False)
    assert str(home.root) in caught.value.where
    assert "this write was not kept" in caught.value.why
    assert "session resume" in caught.value.fix


@pytest.mark.parametrize("name", ["metrics.sqlite", "lock"])
def test_metrics_are_not_written_into_a_lost_file_either(home: Home, writer: SqliteStore, name: str) -> None:
    _one_file(name)(home)
    with pytest.raises(StoreError, match=LOST):
        writer.add_metrics("s", 1, {"loss": 1.0}, at_ms=0)


def test_the_writer_goes_on_when_the_home_is_put_back_with_all_that_was_kept(
    home: Home, writer: SqliteStore
) -> None:
    _move(home)
    with pytest.raises(StoreError, match=LOST):
        writer.append_commit("s", 2, b"2", [2], is_skipped=False)
    home.root.with_name("elsewhere").rename(home.root)
    writer.append_commit("s", 2, b"2 again", [2], is_skipped=False)
    assert list(writer.commits("s")) == [(1, b"1"), (2, b"2 again")]


def test_the_process_that_lost_its_home_leaves_the_next_holder_alone(home: Home) -> None:
    first = HomeLock(home, "first")
    first.acquire()
    store = SqliteStore.open_writer(home, FixedClock())
    _move(home)
    with HomeLock(home, "second"):
        with pytest.raises(StoreError, match=LOST):
            store.put("t", "k", b"v")
        store.close()
        first.release()
        found = holder(home)
        assert found is not None
        assert found.doing == "second"


def test_a_store_without_a_lock_writes_as_before(home: Home) -> None:
    home.ensure()
    store = SqliteStore.open_writer(home, FixedClock())
    home.lock.touch()
    store.put("t", "k", b"v")
    assert store.get("t", "k") == b"v"
    store.close()
