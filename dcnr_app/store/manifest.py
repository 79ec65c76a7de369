"""A checkpoint's manifest: what it holds and the hashes that prove it. Pure; reads and writes no file.

`manifest.json` is `{"sha256": <of the body's bytes>, "body": {...}}`, so that a flipped byte of the manifest
itself is found too. Tensors are named `<parameter>/<slot>`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from dcnr_app.engine.tensorfile import TensorEntry
from dcnr_app.errors import StoreError
from dcnr_app.ids import NetworkId, SessionId

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
NETWORK_FILE = "network.json"
TOKENIZER_FILE = "tokenizer.json"


class CheckpointFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All of a session's state at a step boundary that is not a tensor.

    `n_applied` counts optimizer updates (skipped steps apply none); `cursor_position` counts samples handed
    out; `loss_scale` has `scale` and `finite_steps`; `created_ms` is wall time.
    """

    session: SessionId
    step: int
    n_applied: int
    network: NetworkId
    dataset: str
    tokenizer: str
    cursor_position: int
    loss_scale: Mapping[str, float]
    settings: Mapping[str, Any]
    device_class: str
    app_version: str
    created_ms: int


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file's size and sha256 (hex)."""

    bytes: int
    sha256: str


class TensorPlace(TensorEntry, frozen=True, kw_only=True):
    """A tensor's shape and dtype, and the file in which it lies."""

    file: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The facts, and every file and tensor of the checkpoint by name."""

    format_version: int
    facts: CheckpointFacts
    files: Mapping[str, FileEntry]
    tensors: Mapping[str, TensorPlace]

    @property
    def n_bytes(self) -> int:
        """Bytes of all files but the manifest."""
        return sum(entry.bytes for entry in self.files.values())


class _Envelope(msgspec.Struct, frozen=True):
    sha256: str
    body: msgspec.Raw


class _Version(msgspec.Struct, frozen=True):
    format_version: int


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest's file, indented for people."""
    body = msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=1)
    return b'{"sha256": "%s",\n"body": %s}\n' % (hashlib.sha256(body).hexdigest().encode(), body)


def decode_manifest(raw: bytes) -> Manifest:
    """The manifest in `raw`. Raises StoreError if it is damaged or from a newer app."""
    try:
        envelope = msgspec.json.decode(raw, type=_Envelope)
        body = bytes(envelope.body)
        if hashlib.sha256(body).hexdigest() != envelope.sha256:
            raise StoreError(f"{MANIFEST_FILE} is damaged", why="its own sha256 differs")
        version = msgspec.json.decode(body, type=_Version).format_version
        if version > FORMAT_VERSION:
            raise StoreError(
                f"the checkpoint has format {version}; this app knows {FORMAT_VERSION}",
                fix="pip install --upgrade dcnr-app",
            )
        return msgspec.json.decode(body, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{MANIFEST_FILE} is damaged", why=str(error)) from error


def why_unusable(manifest: Manifest) -> str:
    """Why training cannot go on from these facts, whatever the files hold; empty if it can."""
    facts = manifest.facts
    scale, finite_steps = (facts.loss_scale.get(name, math.nan) for name in ("scale", "finite_steps"))
    if not (math.isfinite(scale) and scale > 0.0 and math.isfinite(finite_steps) and finite_steps >= 0.0):
        return f"its loss_scale is {dict(facts.loss_scale)}: `scale` above 0 and `finite_steps` are needed"
    if not 0 <= facts.n_applied <= facts.step:
        return f"it counts {facts.n_applied} updates in {facts.step} steps"
    if facts.cursor_position < 0:
        return f"its cursor is at {facts.cursor_position}"
    without = {split_tensor_name(name)[0] for name in manifest.tensors}
    without -= {split_tensor_name(name)[0] for name in manifest.tensors if name.endswith("/weight")}
    if without:
        return f"the parameter {min(without)!r} lacks its weight"
    return ""


def pack(sizes: Mapping[str, int], max_file_bytes: int, max_tensors: int) -> tuple[tuple[str, ...], ...]:
    """Tensor names by file, sorted and filled up to both limits; a larger tensor has a file of its own."""
    groups: list[list[str]] = []
    used = 0
    for name in sorted(sizes):
        if not groups or used + sizes[name] > max_file_bytes or len(groups[-1]) == max_tensors:
            groups.append([])
            used = 0
        groups[-1].append(name)
        used += sizes[name]
    return tuple(tuple(group) for group in groups)


def split_tensor_name(name: str) -> tuple[str, str]:
    """(parameter, slot) of a tensor's name."""
    parameter, _, slot = name.rpartition("/")
    return parameter, slot
