"""The NumPy reference backend: the meaning of every op. Knows no network and no other backend."""

from __future__ import annotations

from collections.abc import Mapping

from dcnr_app.engine.backend import Array, MemoryFigures
from dcnr_app.engine.device import reference_facts
from dcnr_app.engine.reference_attention import AttentionOps
from dcnr_app.engine.reference_linear import LinearOps
from dcnr_app.engine.reference_math import MathOps
from dcnr_app.engine.reference_rope import RopeOps
from dcnr_app.engine.reference_rowwise import RowwiseOps
from dcnr_app.engine.reference_update import UpdateOps


class ReferenceBackend(MathOps, LinearOps, RowwiseOps, AttentionOps, RopeOps, UpdateOps):
    """NumPy on the host's CPU. Arrays are plain ndarrays; large ones live in the backend's pool.

    `threads` changes the speed and no result. BLAS is held at one thread until `close`.
    """

    name = "reference"

    def synchronize(self) -> None:
        """Every op has finished when it returns."""

    def release(self, x: Array) -> None:
        """The caller's word that it is done with `x`.

        The memory goes back to the pool when the last array over it is gone, views among them: so neither a
        second release nor one of a view can hurt a live array.
        """

    def memory(self) -> MemoryFigures:
        """Bytes of large arrays (64 KiB or more): alive, free in the pool, and alive at most so far."""
        return self._pool.figures()

    def device_class(self) -> Mapping[str, str]:
        """Facts that fix the bits."""
        return reference_facts()

    def close(self) -> None:
        """End the threads, restore the BLAS thread count, let the pool go. Safe to call twice."""
        self._runner.close()
        self._blas.close()
        self._pool.clear()
