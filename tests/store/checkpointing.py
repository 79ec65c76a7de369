"""Small checkpoints for tests, and a file system that fails at a chosen operation. Holds no test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from dcnr_app.ids import NetworkId, SessionId
from dcnr_app.settings import Home
from dcnr_app.store.checkpoints import State, write_checkpoint
from dcnr_app.store.files import Files
from dcnr_app.store.manifest import NETWORK_FILE, TOKENIZER_FILE, CheckpointFacts

SESSION = "s-20261130-224501-ab12"
ASSETS = {NETWORK_FILE: b'{"nodes":[]}', TOKENIZER_FILE: b'{"model":"bpe"}'}


class Crash(BaseException):
    """The process ends here: no handler runs, as with kill -9."""


class FailingFiles(Files):
    """Counts operations; at number `at` (from 1) it raises what `fault` makes, having half done the work.

    With `is_after` the operation is done whole first. `syncs` False leaves the disk alone, for speed.
    """

    def __init__(
        self, at: int, fault: Callable[[], BaseException], *, is_after: bool = False, syncs: bool = True
    ) -> None:
        self.log: list[tuple[str, str]] = []
        self._at = at
        self._fault = fault
        self._is_after = is_after
        self._syncs = syncs

    def _do(self, name: str, path: Path, whole: Callable[[], None], half: Callable[[], None]) -> None:
        self.log.append((name, path.name))
        if len(self.log) != self._at:
            whole()
            return
        (whole if self._is_after else half)()
        raise self._fault()

    def make_folder(self, path: Path) -> None:
        """Create nothing, or all."""
        self._do("make_folder", path, lambda: super(FailingFiles, self).make_folder(path), lambda: None)

    def write_bytes(self, path: Path, data: bytes) -> None:
        """Write the first half, or all."""
        self._do(
            "write_bytes",
            path,
            lambda: super(FailingFiles, self).write_bytes(path, data),
            lambda: super(FailingFiles, self).write_bytes(path, data[: len(data) // 2]),
        )

    def write_tensors(
        self, path: Path, tensors: Mapping[str, np.ndarray[Any, Any]], metadata: Mapping[str, str]
    ) -> None:
        """Write a file that is cut in its middle, or all."""

        def half() -> None:
            super(FailingFiles, self).write_tensors(path, tensors, metadata)
            with path.open("rb+") as file:
                file.truncate(path.stat().st_size // 2)

        self._do(
            "write_tensors",
            path,
            lambda: super(FailingFiles, self).write_tensors(path, tensors, metadata),
            half,
        )

    def sync_file(self, path: Path) -> None:
        """Sync, or not."""
        self._do("sync_file", path, lambda: self._sync(lambda: Files.sync_file(self, path)), lambda: None)

    def sync_folder(self, path: Path) -> None:
        """Sync, or not."""
        self._do("sync_folder", path, lambda: self._sync(lambda: Files.sync_folder(self, path)), lambda: None)

    def rename(self, source: Path, target: Path) -> None:
        """Rename, or not."""
        self._do("rename", target, lambda: super(FailingFiles, self).rename(source, target), lambda: None)

    def remove_tree(self, path: Path) -> None:
        """Remove one file of the folder, or all."""

        def half() -> None:
            next(iter(sorted(path.iterdir()))).unlink()

        self._do("remove_tree", path, lambda: super(FailingFiles, self).remove_tree(path), half)

    def _sync(self, sync: Callable[[], None]) -> None:
        if self._syncs:
            sync()


def never(at: int = 0, *, syncs: bool = True) -> FailingFiles:
    """A file system that only counts."""
    return FailingFiles(at, Crash, syncs=syncs)


def make_facts(step: int = 10, session: str = SESSION) -> CheckpointFacts:
    """Facts of one step."""
    return CheckpointFacts(
        session=SessionId(session),
        step=step,
        n_applied=step - 1,
        network=NetworkId("0123456789abcdef"),
        dataset="d" * 64,
        tokenizer="e" * 64,
        cursor_position=32 * step,
        loss_scale={"scale": 65536.0, "finite_steps": 3.0},
        settings={"seed": 2**63 - 1, "clip_norm": 1 / 3},
        device_class="cpu-1",
        app_version="0.1.0",
        created_ms=1_800_000_000_000 + step,
    )


def make_state(step: int = 10) -> State:
    """Three parameters with slots, of several dtypes and shapes; every value depends on the step."""
    rng = np.random.default_rng(step)
    weight = rng.standard_normal((6, 4)).astype(np.float32)
    return {
        "block/0/linear.weight": {"weight": weight, "m": weight * 2, "v": weight.T.copy().T},
        "block/0/linear.bias": {"weight": rng.standard_normal(4).astype(ml_dtypes.bfloat16)},
        "norm.gain": {
            "weight": np.float32(rng.standard_normal()).reshape(()),
            "m": np.zeros((0, 3), np.float16),
        },
    }


def same_state(a: State, b: State) -> bool:
    """Whether two states are equal bit for bit."""
    return {name: set(slots) for name, slots in a.items()} == {
        name: set(slots) for name, slots in b.items()
    } and all(
        (array.dtype, array.shape, array.tobytes())
        == (b[name][slot].dtype, b[name][slot].shape, b[name][slot].tobytes())
        for name, slots in a.items()
        for slot, array in slots.items()
    )


def write_step(home: Home, step: int, files: Files | None = None, session: str = SESSION) -> Path:
    """Write the checkpoint of one step, in tensor files of at most 200 bytes."""
    return write_checkpoint(
        home,
        make_facts(step, session),
        make_state(step),
        ASSETS,
        files=files or never(syncs=False),
        max_file_bytes=200,
    )
