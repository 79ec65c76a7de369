"""Arrays by handle, so that pure cores can speak of arrays without holding any. Knows no backend."""

from __future__ import annotations

import itertools

from dcnr_app.engine.backend import Array
from dcnr_app.errors import InvariantError


class HandleTable:
    """Arrays by handle. A handle is never used twice; the table must be empty at a step's end.

    Holding and letting go only: memory goes back when the last reference does. Any thread may put: the event
    loop and the compute thread both do.
    """

    def __init__(self) -> None:
        self._arrays: dict[int, Array] = {}
        self._numbers = itertools.count(1)  # one C call takes a number, so two threads never get the same

    def put(self, array: Array) -> int:
        """A new handle for `array`."""
        handle = next(self._numbers)
        self._arrays[handle] = array
        return handle

    def get(self, handle: int) -> Array:
        """The array, which stays. Raises InvariantError for a handle that is not in the table."""
        self._check(handle)
        return self._arrays[handle]

    def take(self, handle: int) -> Array:
        """The array, which leaves the table. Raises InvariantError for a handle that is not in it."""
        self._check(handle)
        return self._arrays.pop(handle)

    def release(self, handle: int) -> None:
        """Let the array go. Raises InvariantError for a handle that is not in the table."""
        self.take(handle)

    def __len__(self) -> int:
        """Handles in use."""
        return len(self._arrays)

    def _check(self, handle: int) -> None:
        if handle not in self._arrays:
            was_given = 0 < handle < next(self._numbers)  # a number spent on an error message is no loss
            raise InvariantError(
                f"array handle {handle} is not in the table",
                why="it was taken or released before" if was_given else "it was never given",
            )
