"""A home that may not be written: said when it is opened for writing, still readable. A real other user."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dcnr_app.settings import Home
from dcnr_app.store.sqlite import SqliteStore
from tests.contracts.store import FixedClock

_OPEN_FOR_WRITING = """
import os, sys
from pathlib import Path
from dcnr_app.clock import SystemClock
from dcnr_app.errors import StoreError
from dcnr_app.settings import Home
from dcnr_app.store.sqlite import SqliteStore

home = Home(Path(sys.argv[1]))
reader = SqliteStore.open_reader(home)
if os.geteuid() == 0:
    for path in [home.root, *home.root.rglob("*")]:
        os.chown(path, 65534, 65534)
    os.seteuid(65534)  # root would be let through
for path, mode in ((home.control, 0o400), (home.root, 0o500)):
    path.chmod(mode)
    assert reader.get("t", "k") == b"v"
    try:
        SqliteStore.open_writer(home, SystemClock())
    except StoreError as error:
        print(error.what)
"""


@pytest.mark.skipif(os.name == "nt", reason="file modes are POSIX")
def test_writer_of_a_read_only_file_or_home_is_refused_and_a_reader_is_not() -> None:
    # Not below tmp_path, whose parents another user may not enter.
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / "home")
        home.root.parent.chmod(0o755)
        home.ensure()
        store = SqliteStore.open_writer(home, FixedClock())
        store.put("t", "k", b"v")
        store.close()
        command = [sys.executable, "-c", _OPEN_FOR_WRITING, str(home.root)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        home.root.chmod(0o700)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["the database cannot be written or opened"] * 2
