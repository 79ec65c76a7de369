"""One checkpoint: written whole or not at all, verified by hashes, loaded as host arrays. Knows no other one.

A checkpoint is a folder that can be copied anywhere and loaded by its path. It is written under another name,
the manifest last, and gets its own name by one rename after every byte is on the disk.
"""

from __future__ import annotations

import errno
import hashlib
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dcnr_app.engine.tensorfile import MAX_TENSORS, TensorEntry, read_header, read_tensors
from dcnr_app.errors import DcnrError, StoreError, UserError
from dcnr_app.ids import check_id
from dcnr_app.settings import Home
from dcnr_app.store.files import SYSTEM_FILES, Files, check_free_bytes
from dcnr_app.store.manifest import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    NETWORK_FILE,
    TOKENIZER_FILE,
    CheckpointFacts,
    FileEntry,
    Manifest,
    TensorPlace,
    decode_manifest,
    encode_manifest,
    pack,
    split_tensor_name,
    why_unusable,
)

HostArray = np.ndarray[Any, Any]
State = Mapping[str, Mapping[str, HostArray]]

MAX_FILE_BYTES = 512 * 2**20
MAX_MANIFEST_BYTES = 64 * 2**20
# Room for the network, the tokenizer and the manifest beside the tensors.
_SLACK_BYTES = 16 * 2**20
TEMPORARY = ".tmp-"


class Checkpoint(NamedTuple):
    """A loaded checkpoint. `state` maps parameter to slot (`weight`, the optimizer's) to host array."""

    manifest: Manifest
    state: State
    network: bytes
    tokenizer: bytes


def checkpoint_folder(home: Home, session: str) -> Path:
    """Where a session's checkpoints lie. Raises UserError for an id that could leave it."""
    return home.sessions / check_id(session, "session") / "checkpoints"


def step_name(step: int) -> str:
    """The folder name of a step's checkpoint."""
    return f"step-{step:08d}"


def temporary_name(name: str) -> str:
    """A name under which nothing looks for a checkpoint."""
    return f"{name}{TEMPORARY}{secrets.token_hex(4)}"


def needed_bytes(state_bytes: int, kept: int = 0) -> int:
    """Bytes that must be free to write checkpoints of `state_bytes` of tensors, where `kept` are to be kept
    beside the one that is written: what a session should find free before it begins."""
    # Twice: the databases go on growing while it is written.
    return kept * state_bytes + 2 * state_bytes + _SLACK_BYTES


def write_checkpoint(
    home: Home,
    facts: CheckpointFacts,
    state: State,
    assets: Mapping[str, bytes],
    *,
    files: Files = SYSTEM_FILES,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Path:
    """Write a checkpoint and return its folder once all of it is on the disk.

    `assets` has NETWORK_FILE and TOKENIZER_FILE. If the step has a checkpoint that verifies, that one stays.
    Raises StoreError if the disk is full or fails; then nothing that was there before is lost.
    """
    folder = checkpoint_folder(home, facts.session)
    target = folder / step_name(facts.step)
    tensors = {f"{name}/{slot}": array for name, slots in state.items() for slot, array in slots.items()}
    temporary = folder / temporary_name(target.name)
    try:
        if target.exists() and why_broken(target) == "":
            return target
        _make_durable_folder(home, folder, files)
        collect_stale(folder, files)
        n_bytes = sum(array.nbytes for array in tensors.values())
        check_free_bytes(folder, needed_bytes(n_bytes), files)
        _write_files(temporary, facts, tensors, assets, files, max_file_bytes)
        if target.exists():
            files.rename(target, folder / temporary_name(target.name))
        files.rename(temporary, target)
        files.sync_folder(folder)
    except (OSError, StoreError) as error:
        with suppress(OSError):  # what cannot be removed now is collected before the next one is written
            if temporary.exists():
                files.remove_tree(temporary)
        raise _write_failure(error, target) from error
    return target


def collect_stale(folder: Path, files: Files = SYSTEM_FILES) -> None:
    """Remove what a killed writer left unfinished; the home's lock grants that no other writer lives."""
    for path in sorted(folder.glob(f"step-*{TEMPORARY}*")):
        files.remove_tree(path)


def verify_checkpoint(path: Path) -> Manifest:
    """The manifest, after every file's size, sha256 and tensor table were compared with it.

    Raises StoreError that names the first file that differs.
    """
    manifest = read_manifest(path)
    for name, entry in manifest.files.items():
        with (path / name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != entry.sha256:
            raise _damaged(path, name, f"its sha256 is {found}, the manifest has {entry.sha256}")
    for name, expected in _tables(manifest).items():
        header = read_header(path / name)
        if header.entries != expected:
            names = sorted(
                key for key in {*header.entries, *expected} if header.entries.get(key) != expected.get(key)
            )
            raise _damaged(path, name, f"the manifest describes other tensors: {', '.join(names[:5])}")
    return manifest


def why_broken(path: Path) -> str:
    """Why a checkpoint does not verify, in one line; empty if it does."""
    try:
        verify_checkpoint(path)
    except (DcnrError, OSError) as error:
        return " ".join(str(error).split())
    return ""


def read_manifest(path: Path) -> Manifest:
    """The manifest, after it was compared with its own hash and with the names and sizes of the files, and
    its facts were found to be such that training can go on from them.

    Reads no tensor. Raises StoreError.
    """
    raw_path = path / MANIFEST_FILE
    if not raw_path.is_file():
        raise _damaged(path, MANIFEST_FILE, "it is missing: this is no complete checkpoint")
    if raw_path.stat().st_size > MAX_MANIFEST_BYTES:
        raise _damaged(path, MANIFEST_FILE, f"it is larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        manifest = decode_manifest(raw_path.read_bytes())
        for name in manifest.files:
            check_id(name, "file")
    except (StoreError, UserError) as error:
        raise StoreError(error.what, where=str(path), why=error.why, fix=error.fix) from error
    needed = {NETWORK_FILE, TOKENIZER_FILE, *(place.file for place in manifest.tensors.values())}
    if not needed <= manifest.files.keys():
        raise _damaged(path, MANIFEST_FILE, f"it lacks {', '.join(sorted(needed - manifest.files.keys()))}")
    for name, entry in manifest.files.items():
        # A link could point at any file of this machine.
        if (path / name).is_symlink() or not (path / name).is_file():
            raise _damaged(path, name, "it is missing, or no regular file")
        size = (path / name).stat().st_size
        if size != entry.bytes:
            raise _damaged(path, name, f"it has {size} bytes, the manifest has {entry.bytes}")
    why = why_unusable(manifest)
    if why:
        raise _damaged(path, MANIFEST_FILE, why)
    return manifest


def load_checkpoint(path: Path) -> Checkpoint:
    """Verify and read a checkpoint, from any folder. Raises StoreError if it is incomplete or damaged."""
    try:
        manifest = verify_checkpoint(path)
        state: dict[str, dict[str, HostArray]] = {}
        for name, expected in _tables(manifest).items():
            for tensor, array in read_tensors(path / name, expected).tensors.items():
                parameter, slot = split_tensor_name(tensor)
                state.setdefault(parameter, {})[slot] = array
        network, tokenizer = (path / NETWORK_FILE).read_bytes(), (path / TOKENIZER_FILE).read_bytes()
    except OSError as error:
        raise StoreError(
            "the checkpoint cannot be read", where=str(path), why=error.strerror or str(error)
        ) from error
    return Checkpoint(manifest, {name: state[name] for name in sorted(state)}, network, tokenizer)


def _write_files(
    folder: Path,
    facts: CheckpointFacts,
    tensors: Mapping[str, HostArray],
    assets: Mapping[str, bytes],
    files: Files,
    max_file_bytes: int,
) -> None:
    files.make_folder(folder)
    places: dict[str, TensorPlace] = {}
    groups = pack({name: array.nbytes for name, array in tensors.items()}, max_file_bytes, MAX_TENSORS)
    names = [NETWORK_FILE, TOKENIZER_FILE]
    for name in names:
        files.write_bytes(folder / name, assets[name])
    for i, group in enumerate(groups, start=1):
        name = f"tensors-{i:05d}.safetensors"
        names.append(name)
        metadata = {"format": "dcnr", "session": facts.session, "step": str(facts.step)}
        files.write_tensors(folder / name, {tensor: tensors[tensor] for tensor in group}, metadata)
        for tensor, entry in read_header(folder / name).entries.items():
            places[tensor] = TensorPlace(entry.shape, entry.dtype, file=name)
    for name in names:
        files.sync_file(folder / name)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        facts=facts,
        files={name: _file_entry(folder / name) for name in names},
        tensors=places,
    )
    files.write_bytes(folder / MANIFEST_FILE, encode_manifest(manifest))
    files.sync_file(folder / MANIFEST_FILE)
    files.sync_folder(folder)


def _file_entry(path: Path) -> FileEntry:
    with path.open("rb") as file:
        return FileEntry(bytes=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def _tables(manifest: Manifest) -> dict[str, dict[str, TensorEntry]]:
    tables: dict[str, dict[str, TensorEntry]] = {}
    for tensor, place in manifest.tensors.items():
        tables.setdefault(place.file, {})[tensor] = TensorEntry(place.shape, place.dtype)
    return tables


def _make_durable_folder(home: Home, folder: Path, files: Files) -> None:
    if folder.is_dir():
        return
    files.make_folder(folder)
    for parent in (folder.parent, home.sessions):
        files.sync_folder(parent)


def _write_failure(error: OSError | StoreError, target: Path) -> StoreError:
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, OSError):
        is_full = cause.errno in (errno.ENOSPC, errno.EDQUOT)
        return StoreError(
            "the disk is full: this checkpoint was not written"
            if is_full
            else "this checkpoint was not written",
            where=str(target),
            why=f"{cause.strerror or cause}; older checkpoints are untouched",
            fix="free some space; training can go on and write the next one"
            if is_full
            else "check the disk and the folder's permissions",
        )
    return error if isinstance(error, StoreError) else StoreError(str(error), where=str(target))


def _damaged(path: Path, name: str, why: str) -> StoreError:
    return StoreError(
        f"{name} is damaged or missing",
        where=str(path),
        why=why,
        fix="use another copy or an older checkpoint (`latest` finds the newest that verifies)",
    )
