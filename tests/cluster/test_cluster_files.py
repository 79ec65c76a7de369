"""Files of a cluster: private, whole or not there, and bad ones named with what to do."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dcnr_app.cluster.cluster_files import ClusterFiles
from dcnr_app.cluster.identity import ClusterAuthority
from dcnr_app.cluster.joining_codes import CodeBook, code_added
from dcnr_app.cluster.private_files import write_private
from dcnr_app.cluster.registrar import Registrar
from dcnr_app.errors import RefusedError, StoreError
from dcnr_app.settings import Home
from dcnr_app.store.files import Files
from tests.cluster.joining_scene import Orchestrator, machine_at

Load = Callable[[ClusterFiles], object]
LOADS: dict[str, Load] = {
    "cluster.json": ClusterFiles.load_cluster,
    "members.json": ClusterFiles.load_members,
    "invites.json": ClusterFiles.load_codes,
    "authority.key": ClusterFiles.load_authority,
    "authority.pem": ClusterFiles.load_authority,
}


def test_new_machine_has_nothing_and_loading_writes_nothing(tmp_path: Path) -> None:
    files = ClusterFiles(Home(tmp_path))
    assert files.load_cluster() is None
    assert files.load_members() is None
    assert files.load_authority() is None
    assert files.load_codes() == CodeBook()
    assert list(tmp_path.iterdir()) == []


def test_what_was_saved_is_loaded_again(tmp_path: Path) -> None:
    orchestrator = Orchestrator(tmp_path)
    files = ClusterFiles(orchestrator.home)
    assert files.load_cluster() == orchestrator.own
    assert files.load_members() == orchestrator.registrar.membership
    authority = files.load_authority()
    assert authority is not None
    assert authority.ca_pem == orchestrator.own.ca_pem
    book, _ = code_added(CodeBook(), 7, 0)
    files.save_codes(book)
    assert files.load_codes() == book


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no file modes")
def test_all_files_are_for_their_owner_only(tmp_path: Path) -> None:
    orchestrator = Orchestrator(tmp_path)
    paths = list((orchestrator.home.root / "cluster").iterdir())
    assert {path.name for path in paths} >= set(LOADS)
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}


@pytest.mark.parametrize("name", sorted(LOADS))
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"codes": 1}', b"[" * 100_000])
def test_half_or_garbled_file_is_named_and_left_alone(tmp_path: Path, name: str, content: bytes) -> None:
    orchestrator = Orchestrator(tmp_path)
    path = orchestrator.home.root / "cluster" / name
    path.write_bytes(content)
    with pytest.raises(StoreError, match="cannot be read") as told:
        LOADS[name](ClusterFiles(orchestrator.home))
    assert told.value.where.startswith(str(path.parent))
    assert "restore" in told.value.fix
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["authority.key", "authority.pem"])
def test_half_an_authority_is_said_to_be_missing(tmp_path: Path, name: str) -> None:
    orchestrator = Orchestrator(tmp_path)
    (orchestrator.home.root / "cluster" / name).unlink()
    with pytest.raises(StoreError, match=f"{name} of this cluster is missing"):
        ClusterFiles(orchestrator.home).load_authority()


def test_key_of_another_authority_is_refused(tmp_path: Path) -> None:
    orchestrator = Orchestrator(tmp_path)
    other = ClusterAuthority.create("other")
    (orchestrator.home.root / "cluster" / "authority.key").write_bytes(other.key_pem)
    with pytest.raises(StoreError, match="cannot be read") as told:
        ClusterFiles(orchestrator.home).load_authority()
    assert "do not belong together" in told.value.why


def test_folder_in_place_of_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "cluster" / "cluster.json").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"cannot read cluster\.json"):
        ClusterFiles(Home(tmp_path)).load_cluster()


def test_dropped_cluster_is_kept_aside_and_the_machine_keeps_its_id(tmp_path: Path) -> None:
    orchestrator = Orchestrator(tmp_path)
    files = ClusterFiles(orchestrator.home)
    aside = files.drop_cluster("left")
    assert aside is not None
    assert aside.name.startswith("set-aside-left-")
    assert (aside / "authority.key").exists()
    assert files.load_cluster() is None
    assert files.drop_cluster("left") is None
    assert machine_at(tmp_path, "orchestrator")[1].id == orchestrator.machine.id
    with pytest.raises(RefusedError, match="not the orchestrator"):
        Registrar(files, orchestrator.machine, orchestrator.build, orchestrator.clock)


@pytest.mark.parametrize("name", ["authority", "members.json"])
def test_orchestrator_without_its_books_says_which_are_missing(tmp_path: Path, name: str) -> None:
    orchestrator = Orchestrator(tmp_path)
    for path in (orchestrator.home.root / "cluster").glob(f"{name}*"):
        path.unlink()
    with pytest.raises(StoreError, match="books are not whole"):
        Registrar(
            ClusterFiles(orchestrator.home), orchestrator.machine, orchestrator.build, orchestrator.clock
        )


class FullDisk(Files):
    """A disk on which nothing more becomes durable."""

    def sync_file(self, path: Path) -> None:
        raise OSError(28, "No space left on device")


def test_full_disk_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    orchestrator = Orchestrator(tmp_path)
    files = ClusterFiles(orchestrator.home, FullDisk())
    before = {path.name: path.read_bytes() for path in files.folder.iterdir()}
    with pytest.raises(StoreError, match=r"cannot write members\.json") as told:
        files.save_members(orchestrator.registrar.membership)
    assert told.value.why == "No space left on device"
    assert {path.name: path.read_bytes() for path in files.folder.iterdir()} == before


def test_failed_write_admits_and_removes_nobody(tmp_path: Path) -> None:
    orchestrator = Orchestrator(tmp_path)
    registrar = Registrar(
        ClusterFiles(orchestrator.home, FullDisk()),
        orchestrator.machine,
        orchestrator.build,
        orchestrator.clock,
    )
    before = registrar.membership
    with pytest.raises(StoreError):
        registrar.rename(orchestrator.machine.id, "other")
    with pytest.raises(StoreError):
        registrar.new_code()
    assert registrar.membership == before
    assert registrar.codes() == ()


def test_replaced_file_is_never_seen_half(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_private(path, b"old")

    class Watching(Files):
        def sync_file(self, fresh: Path) -> None:
            assert path.read_bytes() == b"old"
            assert fresh.read_bytes() == b"new"
            super().sync_file(fresh)

    write_private(path, b"new", Watching())
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_private_keys_are_in_no_repr(tmp_path: Path) -> None:
    assert "PRIVATE" not in repr(Orchestrator(tmp_path).own)
