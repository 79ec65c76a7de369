"""A writer that is killed loses nothing that it acknowledged. Real processes, killed with no warning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dcnr_app.clock import SystemClock
from dcnr_app.settings import Home
from dcnr_app.store.sqlite import SqliteStore

_WRITER = """
import sys
from pathlib import Path
from dcnr_app.clock import SystemClock
from dcnr_app.settings import Home
from dcnr_app.store.sqlite import SqliteStore

home = Home(Path(sys.argv[1]))
store = SqliteStore.open_writer(home, SystemClock())
for i in range(1, 1_000_000):
    store.append("s", "tick", b"%d" % i, expected_seq=i - 1)
    store.append_commit("s", i, b"step %d" % i, range(8 * i, 8 * i + 8), is_skipped=i % 3 == 0)
    store.add_metrics("s", i, {"loss": 1.0 / i}, at_ms=i)
    print(i, flush=True)
"""


@pytest.mark.parametrize("acknowledged", [1, 13])
def test_killed_writer_keeps_every_acknowledged_row(tmp_path: Path, acknowledged: int) -> None:
    home = Home(tmp_path / "home")
    home.ensure()
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(home.root)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(acknowledged):
            process.stdout.readline()
        process.kill()
        last = acknowledged + len(process.stdout.read().splitlines())
        process.wait()
    reader = SqliteStore.open_reader(home)
    assert len(reader.commits("s")) >= last
    reader.close()
    store = SqliteStore.open_writer(home, SystemClock())
    events, commits, ledger = store.read("s"), store.commits("s"), store.ledger("s")
    # One more of each may be there: kept, but killed before it could say so.
    assert last <= len(events) <= last + 1
    assert last <= len(commits) <= len(events)
    assert [(event.seq, event.body) for event in events] == [
        (i, b"%d" % i) for i in range(1, len(events) + 1)
    ]
    assert list(commits) == [(i, b"step %d" % i) for i in range(1, len(commits) + 1)]
    assert list(ledger) == [
        (i, sample, i % 3 == 0) for i in range(1, len(commits) + 1) for sample in range(8 * i, 8 * i + 8)
    ]
    assert [row["step"] for row in store.metrics("s")][:last] == list(range(1, last + 1))
    store.append("s", "tick", b"next", expected_seq=len(events))
    store.close()
