"""All checkpoints of a home: listing, the newest that verifies, rotation, removal, names. Opens no tensor.

A checkpoint's id is `<session>.<step>`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from dcnr_app.errors import DcnrError, StoreError, UserError
from dcnr_app.ids import SessionId, check_id
from dcnr_app.settings import Home
from dcnr_app.store.checkpoints import (
    checkpoint_folder,
    read_manifest,
    step_name,
    temporary_name,
    verify_checkpoint,
    why_broken,
)
from dcnr_app.store.files import SYSTEM_FILES, Files
from dcnr_app.store.manifest import MANIFEST_FILE, Manifest

_ID = re.compile(r"(?P<session>.+)\.(?P<step>\d{1,15})")
_STEP_FOLDER = re.compile(r"step-(\d{8,15})")
_YEAR_10000_MS = 253_402_300_800_000

WhyUnfit = Callable[[Path, Manifest], str]
"""Why a checkpoint (folder, manifest) that verifies is of no use to the asker; empty if it is."""


class CheckpointEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint folder as listed.

    `problem` is empty if the manifest and the files' sizes fit; the files were not read.
    """

    id: str
    path: Path
    session: SessionId
    step: int
    manifest: Manifest | None
    problem: str


class PassedOver(msgspec.Struct, frozen=True):
    """A newer checkpoint that was not used, and why."""

    id: str
    why: str


class Found(msgspec.Struct, frozen=True):
    """The folder that a name stands for, and what `latest` passed over to get there."""

    path: Path
    passed_over: tuple[PassedOver, ...] = ()


def checkpoint_id(session: str, step: int) -> str:
    """The id of a session's checkpoint."""
    return f"{session}.{step}"


def list_checkpoints(home: Home, session: str | None = None) -> tuple[CheckpointEntry, ...]:
    """All checkpoints of a session, or of all, by session and step; unfinished ones are left out."""
    if session is not None:
        return _list_session(home, check_id(session, "session"))
    if not home.sessions.is_dir():
        return ()
    names = sorted(path.name for path in home.sessions.iterdir() if path.is_dir() and _is_id(path.name))
    return tuple(entry for name in names for entry in _list_session(home, name))


def latest_checkpoint(home: Home, session: str | None = None, why_unfit: WhyUnfit | None = None) -> Found:
    """The newest checkpoint that verifies: of the session, or of the one that was written to last.

    `why_unfit` may pass over more than what does not verify. Raises UserError if there is none at all,
    StoreError with all reasons if none verifies.
    """
    passed_over: list[PassedOver] = []
    for entry in _newest_first(list_checkpoints(home, session)):
        why = entry.problem or why_broken(entry.path)
        if not why and why_unfit is not None and entry.manifest is not None:
            why = why_unfit(entry.path, entry.manifest)
        if not why:
            return Found(entry.path, tuple(passed_over))
        passed_over.append(PassedOver(entry.id, why))
    if not passed_over:
        whose = f"session {session!r} has" if session else "there is"
        raise UserError(f"{whose} no checkpoint", where=str(home.sessions), fix="train first: dcnr-app demo")
    raise StoreError(
        f"none of {len(passed_over)} checkpoints verifies",
        where=str(home.sessions),
        why="; ".join(f"{item.id}: {item.why}" for item in passed_over),
        fix="copy a good one here from a backup",
    )


def rotate(home: Home, session: str, keep_last: int, files: Files = SYSTEM_FILES) -> tuple[str, ...]:
    """Keep a session's newest `keep_last` complete checkpoints, remove older ones; returns the removed ids.

    The newest is verified first, hashes included: if it fails, nothing is removed and StoreError is raised.
    Damaged ones are removed only when they are older than all that are kept.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last must be at least 1, got {keep_last}")
    entries = _list_session(home, check_id(session, "session"))
    complete = [entry for entry in reversed(entries) if not entry.problem]
    if not complete:
        return ()
    verify_checkpoint(complete[0].path)
    oldest_kept = complete[:keep_last][-1].step
    removed = [entry for entry in entries if entry.step < oldest_kept and len(complete) > keep_last]
    for entry in removed:
        _discard(entry.path, files)
    return tuple(entry.id for entry in removed)


def remove_checkpoint(home: Home, name: str, files: Files = SYSTEM_FILES) -> None:
    """Remove the checkpoint with this id. Raises UserError if there is none, StoreError if it stays."""
    path = _path_of_id(home, name)
    if path is None:
        raise _unknown(home, name)
    _discard(path, files)


def resolve_checkpoint(home: Home, text: str, why_unfit: WhyUnfit | None = None) -> Found:
    """The folder that `text` means: `latest`, an id, or a checkpoint folder's path.

    Raises UserError if it means nothing; only `latest` verifies what it finds, `why_unfit` included.
    """
    if text == "latest":
        return latest_checkpoint(home, why_unfit=why_unfit)
    by_id = _path_of_id(home, text)
    if by_id is not None:
        return Found(by_id)
    path = Path(text).expanduser()
    if (path / MANIFEST_FILE).is_file():
        return Found(path.resolve())
    if os.sep in text or path.exists():
        raise UserError(
            f"{text!r} is not a checkpoint folder",
            why=f"it has no {MANIFEST_FILE}",
            fix="name a folder like step-00000010",
        )
    raise _unknown(home, text)


def _list_session(home: Home, session: str) -> tuple[CheckpointEntry, ...]:
    folder = checkpoint_folder(home, session)
    if not folder.is_dir():
        return ()
    found = {
        int(match[1]): path
        for path in folder.iterdir()
        if (match := _STEP_FOLDER.fullmatch(path.name)) and path.is_dir() and not path.is_symlink()
    }
    return tuple(_entry(SessionId(session), step, found[step]) for step in sorted(found))


def _entry(session: SessionId, step: int, path: Path) -> CheckpointEntry:
    manifest, problem = None, ""
    try:
        manifest = read_manifest(path)
        if (manifest.facts.session, manifest.facts.step) != (session, step):
            problem = f"it is the checkpoint of {manifest.facts.session}, step {manifest.facts.step}"
    except (DcnrError, OSError) as error:
        problem = " ".join(str(error).split())
    return CheckpointEntry(
        id=checkpoint_id(session, step),
        path=path,
        session=session,
        step=step,
        manifest=manifest,
        problem=problem,
    )


def _newest_first(entries: Sequence[CheckpointEntry]) -> list[CheckpointEntry]:
    # Within a session the step decides: wall clocks may be set back. Between sessions only the time can.
    written_ms: dict[str, int] = {}
    for entry in entries:
        created_ms = entry.manifest.facts.created_ms if entry.manifest is not None else 0
        if created_ms >= _YEAR_10000_MS:
            created_ms = 0  # of a broken clock: it would be the newest for ever
        written_ms[entry.session] = max(written_ms.get(entry.session, 0), created_ms)
    return sorted(
        entries, key=lambda entry: (written_ms[entry.session], entry.session, entry.step), reverse=True
    )


def _discard(path: Path, files: Files) -> None:
    # First the name goes, at once and durably: a kill in between leaves no half of a checkpoint under it.
    doomed = path.with_name(temporary_name(path.name))
    try:
        files.rename(path, doomed)
        files.sync_folder(path.parent)
        files.remove_tree(doomed)
    except OSError as error:
        raise StoreError(
            "a checkpoint could not be removed", where=str(path), why=error.strerror or str(error)
        ) from error


def _path_of_id(home: Home, name: str) -> Path | None:
    match = _ID.fullmatch(name)
    if match is None or not _is_id(match["session"]):
        return None
    path = checkpoint_folder(home, match["session"]) / step_name(int(match["step"]))
    return path if path.is_dir() and not path.is_symlink() else None


def _is_id(text: str) -> bool:
    try:
        check_id(text, "session")
    except UserError:
        return False
    return True


def _unknown(home: Home, name: str) -> UserError:
    known = [entry.id for entry in _newest_first(list_checkpoints(home))[:3]]
    return UserError(
        f"there is no checkpoint {name!r}",
        why="a checkpoint is named by `latest`, by <session>.<step>, or by the path of its folder",
        fix=f"the newest are {', '.join(known)}" if known else "train first: dcnr-app demo",
    )
