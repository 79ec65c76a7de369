"""Whether files are still the very ones that were opened. Knows no database and no lock.

A program keeps a file that was deleted or moved under it, and writes on into it unseen; another process finds
a new file at the path, and its lock free. Device and inode number tell them apart; a look costs microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from dcnr_app.errors import StoreError

Identity = tuple[int, int] | None


def identity_of(path: Path) -> Identity:
    """Device and inode number of the file at this path; None where none can be reached."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def identities_of(paths: Iterable[Path]) -> Mapping[Path, Identity]:
    """What `check_standing` compares with later: the files that are at these paths now."""
    return {path: identity_of(path) for path in paths}


def check_standing(identities: Mapping[Path, Identity]) -> None:
    """Raise StoreError if a path leads to no file any more, or to another one than before."""
    for path, identity in identities.items():
        if identity_of(path) != identity:
            raise StoreError(
                "the home was deleted, moved or replaced while it was in use",
                where=str(path.parent),
                why=f"{path.name} is not the file that was opened; this write was not kept, the earlier ones "
                "are where that file is now, or gone with it",
                fix="put the folder back, or set DCNR_HOME to where it is now; then go on with: "
                "dcnr-app session resume latest",
            )
