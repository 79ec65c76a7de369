"""One checkpoint: complete, self-contained, there whole or not at all, wherever its writer dies."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dcnr_app.errors import StoreError, UserError
from dcnr_app.settings import Home
from dcnr_app.store.checkpoints import (
    checkpoint_folder,
    load_checkpoint,
    needed_bytes,
    verify_checkpoint,
    why_broken,
    write_checkpoint,
)
from dcnr_app.store.files import Files, check_free_bytes
from dcnr_app.store.manifest import MANIFEST_FILE, decode_manifest, encode_manifest, pack
from dcnr_app.store.shelf import latest_checkpoint, list_checkpoints
from tests.store.checkpointing import (
    ASSETS,
    SESSION,
    Crash,
    FailingFiles,
    make_facts,
    make_state,
    never,
    same_state,
    write_step,
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with nothing in it."""
    return Home(tmp_path / "home")


def n_operations(home: Home, *, first: int = 10, second: int = 20) -> int:
    """How many file operations the second checkpoint of a session takes."""
    write_step(home, first)
    counter = never(syncs=False)
    write_step(home, second, counter)
    shutil.rmtree(home.root)
    return len(counter.log)


def test_checkpoint_comes_back_whole(home: Home) -> None:
    path = write_step(home, 10)
    loaded = load_checkpoint(path)
    assert same_state(loaded.state, make_state(10))
    assert loaded.manifest.facts == make_facts(10)
    assert (loaded.network, loaded.tokenizer) == tuple(ASSETS.values())
    assert path == home.sessions / SESSION / "checkpoints" / "step-00000010"


def test_tensors_are_named_by_parameter_and_slot_and_split_over_files(home: Home) -> None:
    manifest = verify_checkpoint(write_step(home, 10))
    assert set(manifest.tensors) == {
        "block/0/linear.weight/weight",
        "block/0/linear.weight/m",
        "block/0/linear.weight/v",
        "block/0/linear.bias/weight",
        "norm.gain/weight",
        "norm.gain/m",
    }
    assert len({place.file for place in manifest.tensors.values()}) == 2
    assert manifest.n_bytes == sum(entry.bytes for entry in manifest.files.values()) > 300


def test_copy_elsewhere_loads_by_its_path(home: Home, tmp_path: Path) -> None:
    path = write_step(home, 10)
    shutil.copytree(path, tmp_path / "elsewhere" / "my model")
    shutil.rmtree(home.root)
    assert same_state(load_checkpoint(tmp_path / "elsewhere" / "my model").state, make_state(10))


def test_everything_is_on_the_disk_before_the_name_appears(home: Home) -> None:
    files = never()
    write_step(home, 10, files)
    operations = [operation for operation, _ in files.log]
    renamed = operations.index("rename")
    written = [(i, name) for i, (operation, name) in enumerate(files.log) if operation.startswith("write")]
    assert written[-1][1] == MANIFEST_FILE
    for i, name in written:
        assert i < files.log.index(("sync_file", name)) < renamed
    others = [files.log.index(("sync_file", name)) for _, name in written[:-1]]
    assert max(others) < written[-1][0]
    assert operations[renamed - 1 : renamed + 2] == ["sync_folder", "rename", "sync_folder"]
    assert files.log[-1] == ("sync_folder", "checkpoints")


@pytest.mark.parametrize("is_after", [False, True])
def test_writer_that_dies_at_any_operation_leaves_the_older_checkpoint(home: Home, is_after: bool) -> None:
    total = n_operations(home)
    assert total > 10
    for at in range(1, total + 1):
        write_step(home, 10)
        with pytest.raises(Crash):
            write_step(home, 20, FailingFiles(at, Crash, is_after=is_after, syncs=False))
        found = latest_checkpoint(home, SESSION)
        loaded = load_checkpoint(found.path)
        assert loaded.manifest.facts.step in ({10} if len(list_checkpoints(home)) == 1 else {20}), at
        assert same_state(loaded.state, make_state(loaded.manifest.facts.step)), at
        write_step(home, 20)
        assert load_checkpoint(latest_checkpoint(home).path).manifest.facts.step == 20
        leftovers = [path.name for path in checkpoint_folder(home, SESSION).iterdir() if ".tmp-" in path.name]
        assert leftovers == [], at
        shutil.rmtree(home.root)


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "disk is full"), (errno.EIO, "was not written"), (errno.EACCES, "was not")],
)
def test_disk_that_fails_at_any_operation_is_said_and_loses_nothing(
    home: Home, code: int, words: str
) -> None:
    def fault() -> BaseException:
        return OSError(code, "the disk says no")

    for at in range(1, n_operations(home) + 1):
        write_step(home, 10)
        with pytest.raises(StoreError, match=words) as caught:
            write_step(home, 20, FailingFiles(at, fault, syncs=False))
        assert "the disk says no" in caught.value.why
        assert why_broken(checkpoint_folder(home, SESSION) / "step-00000010") == ""
        shutil.rmtree(home.root)


def test_failed_write_gives_its_space_back(home: Home) -> None:
    write_step(home, 10)
    files = FailingFiles(6, lambda: OSError(errno.ENOSPC, "full"), syncs=False)
    with pytest.raises(StoreError, match="disk is full"):
        write_step(home, 20, files)
    assert [path.name for path in checkpoint_folder(home, SESSION).iterdir()] == ["step-00000010"]


class SmallDisk(Files):
    """A disk with a given number of free bytes."""

    def __init__(self, free: int) -> None:
        self._free = free

    def free_bytes(self, path: Path) -> int:
        """The given number."""
        return self._free


def test_too_small_disk_is_refused_before_anything_is_written(home: Home) -> None:
    with pytest.raises(StoreError, match=r"1\.2 MB free, and 16\.8 MB are needed"):
        write_step(home, 10, SmallDisk(1_200_000))
    assert list(checkpoint_folder(home, SESSION).iterdir()) == []


def test_free_space_check_names_both_figures(tmp_path: Path) -> None:
    check_free_bytes(tmp_path, 5_000_000, SmallDisk(5_000_000))
    check_free_bytes(tmp_path, 1)
    with pytest.raises(StoreError, match=r"4\.9 MB free, and 5\.0 MB are needed"):
        check_free_bytes(tmp_path, 5_000_000, SmallDisk(4_900_000))


def test_the_need_said_for_a_session_is_what_its_last_checkpoint_asks_for(home: Home) -> None:
    n_bytes = sum(array.nbytes for slots in make_state(10).values() for array in slots.values())
    assert needed_bytes(n_bytes) == 2 * n_bytes + 16 * 2**20
    assert needed_bytes(n_bytes, kept=3) == needed_bytes(n_bytes) + 3 * n_bytes
    with pytest.raises(StoreError, match="are needed"):
        write_step(home, 10, SmallDisk(needed_bytes(n_bytes) - 1))
    write_step(home, 10, SmallDisk(needed_bytes(n_bytes)))


def test_any_flipped_byte_of_any_file_is_found_and_the_file_named(home: Home) -> None:
    path = write_step(home, 10)
    names = sorted(file.name for file in path.iterdir())
    assert len(names) == 5
    for name in names:
        raw = (path / name).read_bytes()
        for at in sorted({*range(0, len(raw), 13), len(raw) - 1}):
            flipped = bytearray(raw)
            flipped[at] ^= 1 << (at % 8)
            if name == MANIFEST_FILE and mean_the_same(bytes(flipped), raw):
                continue  # a blank that became another blank
            (path / name).write_bytes(flipped)
            assert f"{name} is damaged" in why_broken(path), (name, at)
        (path / name).write_bytes(raw)
    assert why_broken(path) == ""


def mean_the_same(a: bytes, b: bytes) -> bool:
    """Whether two JSON texts mean the same."""
    try:
        return bool(msgspec.json.decode(a) == msgspec.json.decode(b))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes() + b"x")]
)
def test_missing_or_longer_file_is_named(home: Home, damage: Callable[[Path], object]) -> None:
    for name in ("network.json", "tokenizer.json", "tensors-00002.safetensors", MANIFEST_FILE):
        path = write_step(home, 10)
        damage(path / name)
        assert f"{name} is damaged" in why_broken(path)
        shutil.rmtree(home.root)


def test_linked_file_is_refused(home: Home, tmp_path: Path) -> None:
    path = write_step(home, 10)
    (path / "network.json").rename(tmp_path / "outside.json")
    (path / "network.json").symlink_to(tmp_path / "outside.json")
    with pytest.raises(StoreError, match=r"network\.json(.|\n)*no regular file"):
        load_checkpoint(path)


@pytest.mark.parametrize("name", ["../outside.json", "/etc/passwd", "a/b", ".."])
def test_manifest_that_names_files_elsewhere_is_refused(home: Home, name: str) -> None:
    path = write_step(home, 10)
    manifest = verify_checkpoint(path)
    entry = manifest.files["network.json"]
    forged = msgspec.structs.replace(manifest, files={**manifest.files, name: entry})
    (path / MANIFEST_FILE).write_bytes(encode_manifest(forged))
    with pytest.raises(StoreError, match="not a valid file id"):
        verify_checkpoint(path)


def test_manifest_that_describes_other_tensors_is_refused(home: Home) -> None:
    path = write_step(home, 10)
    manifest = verify_checkpoint(path)
    gain = manifest.tensors["norm.gain/weight"]
    for changed in (
        {"norm.gain/weight": msgspec.structs.replace(gain, shape=(1,))},
        {"norm.more/weight": gain},
    ):
        forged = msgspec.structs.replace(manifest, tensors={**manifest.tensors, **changed})
        (path / MANIFEST_FILE).write_bytes(encode_manifest(forged))
        with pytest.raises(StoreError, match=r"safetensors is damaged(.|\n)*norm\.") as caught:
            load_checkpoint(path)
        assert next(iter(changed)) in caught.value.why


def test_newer_format_is_refused_with_advice(home: Home) -> None:
    manifest = verify_checkpoint(write_step(home, 10))
    raw = encode_manifest(msgspec.structs.replace(manifest, format_version=2))
    with pytest.raises(StoreError, match=r"format 2; this app knows 1(.|\n)*upgrade"):
        decode_manifest(raw)
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_folder_that_is_no_checkpoint_is_said(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(StoreError, match=r"manifest\.json is damaged or missing"):
            load_checkpoint(path)


def test_step_written_again_keeps_the_good_one_and_replaces_a_broken_one(home: Home) -> None:
    path = write_step(home, 10)
    before = path.stat().st_ino
    assert write_step(home, 10) == path
    assert path.stat().st_ino == before
    (path / "network.json").write_bytes(b"!")
    write_step(home, 10)
    assert why_broken(path) == ""


def test_id_that_leaves_the_home_is_refused(home: Home, tmp_path: Path) -> None:
    for session in ("../../x", "/etc/x", "a/b", ""):
        with pytest.raises(UserError, match="not a valid session id"):
            write_step(home, 10, session=session)
    assert list(tmp_path.iterdir()) == []


def test_wrong_dtype_is_refused_before_the_name_appears(home: Home) -> None:
    state = {"p": {"weight": np.zeros(3, np.complex64)}}
    with pytest.raises(StoreError, match="tensor file could not be written"):
        write_checkpoint(home, make_facts(), state, ASSETS)
    assert list(checkpoint_folder(home, SESSION).iterdir()) == []


def test_packing_is_sorted_complete_and_within_both_limits() -> None:
    sizes = {"d": 5, "a": 4, "c": 30, "b": 6, "e": 0, "f": 1}
    assert pack(sizes, max_file_bytes=10, max_tensors=9) == (("a", "b"), ("c",), ("d", "e", "f"))
    assert pack(sizes, max_file_bytes=99, max_tensors=4) == (("a", "b", "c", "d"), ("e", "f"))
    assert pack({}, 1, 1) == ()
