"""The limit of open files is raised, never lowered, and never beyond what the system allows."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")


def limits_after(soft: int, hard: int, wanted: int) -> tuple[int, int]:
    """(what it returns, the soft limit after it), in a process of its own."""
    code = (
        "import resource\n"
        "from dcnr_app.cluster.open_files import allow_open_files\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        f"print(allow_open_files({wanted}), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told, found = done.stdout.split()
    return int(told), int(found)


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "limit"),
    [(256, 4096, 1024, 1024), (256, 512, 1024, 512), (2048, 4096, 1024, 2048)],
)
def test_limit_is_raised_as_far_as_it_goes(soft: int, hard: int, wanted: int, limit: int) -> None:
    assert limits_after(soft, hard, wanted) == (limit, limit)
