"""How many files and sockets this process may have open. IO."""

from __future__ import annotations

import sys
from typing import Final

MOST_OPEN_FILES: Final = 8_192
"""Enough for `grpc_options.MAX_CONNECTIONS` of strangers beside our own work; macOS begins with 256."""


def allow_open_files(wanted: int = MOST_OPEN_FILES) -> int:
    """Raise this process's own limit towards `wanted`, as far as the system lets it; returns the limit.

    Never lowers it. Windows has no such limit: there it returns `wanted`.
    """
    if sys.platform == "win32":
        return wanted
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= reachable:
        return soft if soft != resource.RLIM_INFINITY else wanted
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    except (OSError, ValueError):  # macOS says no above a limit of its own that it does not tell
        return soft
    return reachable
