"""Counts who still uses a buffer, so that its memory goes back exactly once. Knows no VNode and no plan.

Arrays alias: a reshape is a view, an addition's two input gradients are one array, a saved array may be an
input. So uses are counted per underlying buffer, found by following `.base`, as NumPy and CuPy arrays have
it; an array without `.base` (MLX) counts as its own buffer, and there `release` is only a hint.
"""

from __future__ import annotations

from typing import Any

from dcnr_app.engine.backend import Array, Backend
from dcnr_app.errors import InvariantError


class _Use:
    """Uses of one buffer. Keeping the buffer here keeps its `id` from being given to another one."""

    __slots__ = ("buffer", "count", "is_foreign")

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.count = 0
        self.is_foreign = False


class BufferLedger:
    """Uses of buffers. A buffer is released when its last use ends, unless it was ever foreign.

    Foreign buffers belong to somebody else too: inputs from outside, tensors given out, parameters. Those
    are let go, never handed back to the backend's pool.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._uses: dict[int, _Use] = {}

    def hold(self, array: Array, *, is_foreign: bool = False) -> Array:
        """`array`, with one use more."""
        buffer = _buffer(array)
        use = self._uses.get(id(buffer))
        if use is None:
            use = self._uses[id(buffer)] = _Use(buffer)
        use.count += 1
        if is_foreign:
            use.is_foreign = True
        return array

    def drop(self, array: Array) -> None:
        """End one use; the last one gives the memory back. Raises InvariantError if there was none."""
        if self._end(array):
            self._backend.release(array)

    def disown(self, array: Array) -> Array:
        """`array`, whose use ends here because somebody outside holds it from now on."""
        self._use(array).is_foreign = True
        self._end(array)
        return array

    def surrender(self, array: Array) -> Array:
        """`array`, whose only use ends here without a release: a backend op may reuse its memory."""
        if not self.is_sole(array):
            raise InvariantError("an array that others still use cannot be given up")
        self._end(array)
        return array

    def is_sole(self, array: Array) -> bool:
        """Whether the one use that the caller holds is all there is, so that it may be written into."""
        use = self._use(array)
        return use.count == 1 and not use.is_foreign

    def __len__(self) -> int:
        """Buffers in use."""
        return len(self._uses)

    def _use(self, array: Array) -> _Use:
        use = self._uses.get(id(_buffer(array)))
        if use is None:
            raise InvariantError("an array was let go more often than it was held")
        return use

    def _end(self, array: Array) -> bool:
        use = self._use(array)
        use.count -= 1
        if use.count:
            return False
        del self._uses[id(use.buffer)]
        return not use.is_foreign


def _buffer(array: Array) -> Any:
    buffer = array
    while (parent := getattr(buffer, "base", None)) is not None:
        buffer = parent
    return buffer


def buffer_bytes(arrays: list[Array]) -> int:
    """Bytes of all distinct buffers behind `arrays`; a buffer counts as the largest array seen on it."""
    sizes: dict[int, int] = {}
    for array in arrays:
        key = id(_buffer(array))
        sizes[key] = max(sizes.get(key, 0), int(array.nbytes))
    return sum(sizes.values())
