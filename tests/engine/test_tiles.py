"""Tiles are functions of shape, tasks all run, and the BLAS limit is held while anyone needs it."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr_app.engine.tiles import TileRunner, row_tiles


@given(st.integers(0, 2000), st.integers(2, 300))
def test_tiles_cover_all_rows_once_and_none_is_a_single_row(n_rows: int, rows: int) -> None:
    tiles = row_tiles(n_rows, rows)
    assert [row for start, stop in tiles for row in range(start, stop)] == list(range(n_rows))
    assert n_rows == 1 or all(2 <= stop - start <= rows + 1 for start, stop in tiles)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_failing_task_is_raised_after_all_others_ended(threads: int) -> None:
    runner = TileRunner(threads)
    done: list[int] = []

    def fail() -> None:
        raise KeyError("tile")

    with pytest.raises(KeyError, match="tile"):
        runner.run([*(lambda i=i: done.append(i) for i in range(20)), fail])
    assert sorted(done) == list(range(20))
    runner.close()


def test_a_task_that_fails_on_a_helper_thread_is_raised() -> None:
    runner = TileRunner(2)
    meet = threading.Barrier(2, timeout=10)
    caller = threading.get_ident()

    def fail_on_helper() -> None:
        meet.wait()
        if threading.get_ident() != caller:
            raise KeyError("helper")

    with pytest.raises(KeyError, match="helper"):
        runner.run([fail_on_helper, fail_on_helper])
    runner.close()


BLAS_SCRIPT = """
from threadpoolctl import threadpool_info, threadpool_limits
from dcnr_app.engine.reference import ReferenceBackend

def blas_threads():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

with threadpool_limits(2, user_api="blas"):
    before = blas_threads()
    first, second = ReferenceBackend(), ReferenceBackend(2)
    first.close()
    first.close()
    assert blas_threads() == {1}, blas_threads()
    second.close()
    assert blas_threads() == before, blas_threads()
"""


def test_blas_stays_at_one_thread_until_the_last_backend_closes() -> None:
    # A process of its own: the limit belongs to the process, and other tests hold backends too.
    done = subprocess.run([sys.executable, "-c", BLAS_SCRIPT], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
