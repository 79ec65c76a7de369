"""All checkpoints of a home: order, the newest good one, rotation that empties no shelf, names, removal."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr_app.errors import StoreError, UserError
from dcnr_app.settings import Home
from dcnr_app.store.checkpoints import checkpoint_folder, why_broken
from dcnr_app.store.shelf import (
    latest_checkpoint,
    list_checkpoints,
    remove_checkpoint,
    resolve_checkpoint,
    rotate,
)
from tests.store.checkpointing import SESSION, Crash, FailingFiles, never, write_step

OTHER = "s-20261130-120000-0001"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with nothing in it."""
    return Home(tmp_path / "home")


def steps(home: Home) -> list[int]:
    """Steps of the session's listed checkpoints."""
    return [entry.step for entry in list_checkpoints(home, SESSION)]


def damage(home: Home, step: int, name: str = "tensors-00001.safetensors") -> None:
    """Flip the last byte of one file of a checkpoint."""
    path = checkpoint_folder(home, SESSION) / f"step-{step:08d}" / name
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def test_empty_home_lists_nothing_and_has_no_latest(home: Home) -> None:
    assert list_checkpoints(home) == ()
    assert list_checkpoints(home, SESSION) == ()
    with pytest.raises(UserError, match=r"there is no checkpoint(.|\n)*train"):
        latest_checkpoint(home)
    with pytest.raises(UserError, match=f"session '{SESSION}' has no checkpoint"):
        latest_checkpoint(home, SESSION)


def test_list_is_by_session_and_number_of_the_step(home: Home) -> None:
    for step in (100, 20, 3):
        write_step(home, step)
    write_step(home, 7, session=OTHER)
    entries = list_checkpoints(home)
    assert [entry.id for entry in entries] == [
        f"{OTHER}.7",
        f"{SESSION}.3",
        f"{SESSION}.20",
        f"{SESSION}.100",
    ]
    assert {entry.problem for entry in entries} == {""}
    assert entries[0].manifest is not None
    assert entries[0].manifest.facts.step == 7


def test_list_leaves_out_what_is_unfinished_or_foreign(home: Home, tmp_path: Path) -> None:
    path = write_step(home, 10)
    shutil.copytree(path, path.with_name("step-00000020.tmp-abcd"))
    (path.parent / "step-xyz").mkdir()
    (path.parent / "notes.txt").write_text("mine")
    (path.parent / "step-00000030").symlink_to(path)
    (home.sessions / "Not An Id" / "checkpoints").mkdir(parents=True)
    assert [entry.step for entry in list_checkpoints(home)] == [10]


def test_copied_step_folder_of_another_step_is_a_problem(home: Home) -> None:
    path = write_step(home, 10)
    shutil.copytree(path, path.with_name("step-00000020"))
    assert "step 10" in list_checkpoints(home)[1].problem
    assert latest_checkpoint(home).path == path


def test_latest_is_the_newest_that_verifies_and_says_why_others_were_passed_over(home: Home) -> None:
    for step in (10, 20, 30, 40):
        write_step(home, step)
    damage(home, 40)
    (checkpoint_folder(home, SESSION) / "step-00000030" / "manifest.json").unlink()
    found = latest_checkpoint(home)
    assert found.path.name == "step-00000020"
    assert [item.id for item in found.passed_over] == [f"{SESSION}.40", f"{SESSION}.30"]
    assert "tensors-00001.safetensors" in found.passed_over[0].why
    assert "sha256" in found.passed_over[0].why
    assert "manifest.json" in found.passed_over[1].why


def test_latest_of_all_is_of_the_session_written_to_last(home: Home) -> None:
    write_step(home, 50)
    write_step(home, 60, session=OTHER)
    assert latest_checkpoint(home).path.name == "step-00000060"
    write_step(home, 70)
    assert latest_checkpoint(home).path.name == "step-00000070"
    assert latest_checkpoint(home, OTHER).path.name == "step-00000060"


def test_latest_without_any_good_one_gives_all_reasons(home: Home) -> None:
    for step in (10, 20):
        write_step(home, step)
        damage(home, step, "network.json")
    with pytest.raises(StoreError, match="none of 2 checkpoints verifies") as caught:
        latest_checkpoint(home)
    assert f"{SESSION}.10" in caught.value.why
    assert f"{SESSION}.20" in caught.value.why


def test_rotation_keeps_the_newest(home: Home) -> None:
    for step in (10, 20, 30, 40):
        write_step(home, step)
    assert rotate(home, SESSION, 5) == ()
    assert rotate(home, SESSION, 2) == (f"{SESSION}.10", f"{SESSION}.20")
    assert steps(home) == [30, 40]
    assert rotate(home, SESSION, 2) == ()
    assert rotate(home, OTHER, 1) == ()


def test_rotation_removes_nothing_if_the_newest_does_not_verify(home: Home) -> None:
    for step in (10, 20, 30):
        write_step(home, step)
    damage(home, 30)
    with pytest.raises(StoreError, match=r"tensors-00001\.safetensors is damaged"):
        rotate(home, SESSION, 1)
    assert steps(home) == [10, 20, 30]


def test_rotation_does_not_count_a_torn_one(home: Home) -> None:
    for step in (10, 20, 30, 40):
        write_step(home, step)
    (checkpoint_folder(home, SESSION) / "step-00000030" / "network.json").unlink()
    assert rotate(home, SESSION, 2) == (f"{SESSION}.10",)
    assert steps(home) == [20, 30, 40]
    assert rotate(home, SESSION, 1) == (f"{SESSION}.20", f"{SESSION}.30")


def test_rotation_to_nothing_is_a_mistake(home: Home) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        rotate(home, SESSION, 0)


def newest_good(home: Home) -> int:
    """The highest step that verifies, found by trying them all; 0 if none does."""
    folder = checkpoint_folder(home, SESSION)
    paths = folder.glob("step-????????") if folder.is_dir() else ()
    return max((int(path.name[5:]) for path in paths if not why_broken(path)), default=0)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 18), st.booleans()),
        st.tuples(st.just("rotate"), st.integers(0, 6), st.booleans()),
        st.tuples(st.just("damage"), st.integers(0, 3), st.booleans()),
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=25, deadline=None)
@given(operations, st.integers(1, 3))
def test_no_sequence_of_writes_rotations_and_crashes_loses_the_newest_good_one(
    sequence: list[tuple[str, int, bool]], keep_last: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        step = 0
        for operation, number, flag in sequence:
            before = newest_good(home)
            files = FailingFiles(number, Crash, is_after=flag, syncs=False)
            try:
                if operation == "write":
                    step += 10
                    write_step(home, step, files)
                elif operation == "rotate":
                    rotate(home, SESSION, keep_last, files)
                elif number < len(steps(home)):
                    damage(home, steps(home)[number], "network.json")
                    continue
            except (Crash, StoreError):
                pass  # the process died, or the newest did not verify
            assert newest_good(home) >= before
            if before:
                assert latest_checkpoint(home, SESSION).path.name == f"step-{newest_good(home):08d}"


@pytest.mark.parametrize("is_after", [False, True])
def test_killed_removal_leaves_no_half_checkpoint_under_its_name(home: Home, is_after: bool) -> None:
    for at in (1, 2, 3):
        for step in (10, 20):
            write_step(home, step)
        with pytest.raises(Crash):
            remove_checkpoint(home, f"{SESSION}.20", FailingFiles(at, Crash, is_after=is_after, syncs=False))
        assert {entry.problem for entry in list_checkpoints(home)} == {""}
        assert steps(home)[0] == 10
        shutil.rmtree(home.root)


def test_removal_takes_only_the_named_one(home: Home) -> None:
    for step in (10, 20):
        write_step(home, step)
    remove_checkpoint(home, f"{SESSION}.10")
    assert [path.name for path in checkpoint_folder(home, SESSION).iterdir()] == ["step-00000020"]
    with pytest.raises(UserError, match=rf"no checkpoint '{SESSION}\.10'(.|\n)*{SESSION}\.20"):
        remove_checkpoint(home, f"{SESSION}.10")


def test_removal_that_the_disk_refuses_is_said(home: Home) -> None:
    write_step(home, 10)
    with pytest.raises(StoreError, match=r"could not be removed(.|\n)*no way"):
        remove_checkpoint(home, f"{SESSION}.10", FailingFiles(1, lambda: OSError(5, "no way")))
    assert steps(home) == [10]


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "",
        "latest",
        "../../x.10",
        "a/b.10",
        "/etc.10",
        f"{SESSION}.99",
        f"{SESSION}.-1",
        f"{SESSION}.1e1",
    ],
)
def test_removal_of_what_is_no_id_touches_nothing(home: Home, tmp_path: Path, name: str) -> None:
    write_step(home, 10)
    outside = tmp_path / "x" / "checkpoints" / "step-00000010"
    outside.mkdir(parents=True)
    with pytest.raises(UserError, match="there is no checkpoint"):
        remove_checkpoint(home, name)
    assert outside.is_dir()
    assert steps(home) == [10]


def test_names_of_a_checkpoint(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_step(home, 10)
    newer = write_step(home, 20)
    damage(home, 20)
    assert resolve_checkpoint(home, f"{SESSION}.10").path == path
    assert resolve_checkpoint(home, f"{SESSION}.20").path == newer
    assert resolve_checkpoint(home, str(path)).path == path
    found = resolve_checkpoint(home, "latest")
    assert (found.path, found.passed_over[0].id) == (path, f"{SESSION}.20")
    shutil.copytree(path, tmp_path / "copy")
    monkeypatch.chdir(tmp_path)
    assert resolve_checkpoint(Home(tmp_path / "another home"), "copy").path == tmp_path / "copy"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "there is no checkpoint 'nothing'"),
        (f"{SESSION}.11", "there is no checkpoint"),
        ("../x.10", "not a checkpoint folder"),
        ("/", "not a checkpoint folder"),
    ],
)
def test_name_that_means_nothing_is_refused_with_the_newest_ids(home: Home, text: str, words: str) -> None:
    write_step(home, 10, never())
    with pytest.raises(UserError, match=words):
        resolve_checkpoint(home, text)
