"""One writer per home, across real processes; the lock ends with its process however that ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from dcnr_app.errors import RefusedError
from dcnr_app.settings import Home
from dcnr_app.store.lock import Holder, HomeLock, holder

_HOLDER = """
import sys
from pathlib import Path
from dcnr_app.settings import Home
from dcnr_app.store.lock import HomeLock

with HomeLock(Home(Path(sys.argv[1])), "training session s-1"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding_process(home: Home) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the home until its input closes."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(home.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"held"
        try:
            yield process
        finally:
            process.kill()


def snapshot(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_second_process_is_refused_with_pid_and_purpose_and_changes_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with holding_process(home) as process:
        before = snapshot(home.root)
        with pytest.raises(RefusedError, match="training session s-1") as caught:
            HomeLock(home, "something else").acquire()
        assert f"process {process.pid} " in str(caught.value)
        assert caught.value.exit_code == 5
        assert snapshot(home.root) == before
        found = holder(home)
        assert found is not None
        assert (found.pid, found.doing) == (process.pid, "training session s-1")


def test_killed_process_leaves_the_home_free(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with holding_process(home) as process:
        process.kill()
        process.wait()
        assert home.lock_holder.exists()
        assert holder(home) is None
        with HomeLock(home, "next"):
            found = holder(home)
            assert found is not None
            assert (found.pid, found.doing) == (os.getpid(), "next")


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="only waitid can wait for a death without reaping")
def test_dead_process_that_was_not_reaped_holds_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with holding_process(home) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert home.lock_holder.exists()
        assert holder(home) is None
        with HomeLock(home, "next"):
            pass


def test_released_home_can_be_taken_again_and_has_no_holder(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    for _ in range(2):
        lock = HomeLock(home, "work")
        lock.acquire()
        lock.release()
        lock.release()
        assert holder(home) is None


def test_two_locks_in_one_process_exclude_each_other(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with HomeLock(home, "first"), pytest.raises(RefusedError, match=f"process {os.getpid()} .*first"):
        HomeLock(home, "second").acquire()


def test_note_of_a_process_whose_pid_was_given_to_another_is_not_believed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    note = Holder(pid=os.getpid(), doing="old work", started_s=1.0)
    home.lock_holder.write_bytes(msgspec.json.encode(note))
    assert holder(home) is None


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'{"pid":"x"}', b"\xff\xfe"])
def test_broken_note_names_nobody(tmp_path: Path, raw: bytes) -> None:
    home = Home(tmp_path)
    assert holder(home) is None
    home.lock_holder.write_bytes(raw)
    assert holder(home) is None


def test_lock_without_a_note_is_still_refused(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with HomeLock(home, "first"):
        home.lock_holder.unlink()
        with pytest.raises(RefusedError, match="another process holds this home"):
            HomeLock(home, "second").acquire()
