"""One stream's frames -> whole messages: the state machine behind a reader. Pure: knows no socket or peer.

It holds at most one envelope (8 MiB) and one message's tensors, and the latter only after `check` agreed.
What is refused is skipped up to the next START without being kept; nothing that arrives raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dcnr_app.cluster.codec import (
    LENGTH_BYTES,
    MAX_ENVELOPE_BYTES,
    MORE,
    START,
    Opening,
    Refusal,
    allocate,
    bytes_view,
    open_envelope,
)
from dcnr_app.cluster.messages import AnyMessage, TensorHeader
from dcnr_app.cluster.transport import MAX_FRAME_BYTES, HostArray

Check = Callable[[AnyMessage, Sequence[TensorHeader]], str]


class Arrival(NamedTuple):
    """A whole message."""

    message: AnyMessage
    tensors: dict[str, HostArray]


class _Filling:
    """A message whose tensors are arriving."""

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.tensors = allocate(opening.headers)
        self.missing_bytes = opening.payload_bytes
        self._targets = [bytes_view(array) for array in self.tensors.values() if array.nbytes]
        self._index = 0
        self._offset = 0

    def fill(self, data: memoryview) -> None:
        """Copy `data`, which is not longer than what is missing, into the tensors in order."""
        self.missing_bytes -= len(data)
        done = 0
        while done < len(data):
            target = self._targets[self._index]
            size = min(len(target) - self._offset, len(data) - done)
            target[self._offset : self._offset + size] = data[done : done + size]
            done += size
            self._offset += size
            if self._offset == len(target):
                self._index, self._offset = self._index + 1, 0


class Reassembler:
    """Feeds on frames, gives messages and refusals. `check` says why a message must be refused, or ''."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._envelope = bytearray()
        self._envelope_bytes = 0
        self._filling: _Filling | None = None
        self._skips = False

    def feed(self, frame: bytes | memoryview) -> list[Arrival | Refusal]:
        """What this frame's data completed or broke; usually nothing or one."""
        kind, data = frame[:1], memoryview(frame)[1:]
        if len(frame) > MAX_FRAME_BYTES:
            return self._refuse(Refusal(f"a frame of {len(frame)} bytes, at most {MAX_FRAME_BYTES}"))
        if kind == START:
            return [*self._cut_short(), *self._start(data)]
        if kind == MORE:
            return self._more(data)
        return self._refuse(Refusal("not a frame: it starts with neither of the two marks"))

    def _cut_short(self) -> list[Arrival | Refusal]:
        if self._filling is not None:
            message = f"cut short, {self._filling.missing_bytes} bytes of tensors missing"
        elif self._envelope_bytes:
            message = "cut short within its envelope"
        else:
            return []
        return self._refuse(Refusal(f"the message before this one was {message}"))

    def _start(self, data: memoryview) -> list[Arrival | Refusal]:
        self._skips = False
        length = int.from_bytes(data[:LENGTH_BYTES], "little")
        if len(data) < LENGTH_BYTES or not 0 < length <= MAX_ENVELOPE_BYTES:
            return self._refuse(Refusal(f"an envelope of {length} bytes, 1 to {MAX_ENVELOPE_BYTES} expected"))
        self._envelope_bytes = length
        return self._take(data[LENGTH_BYTES:])

    def _more(self, data: memoryview) -> list[Arrival | Refusal]:
        if self._skips:
            return []
        if self._filling is not None:
            return self._fill(self._filling, data)
        if self._envelope_bytes:
            return self._take(data)
        return self._refuse(Refusal("bytes that belong to no message"))

    def _take(self, data: memoryview) -> list[Arrival | Refusal]:
        """Bytes of the envelope, and perhaps the first of the tensors."""
        missing = self._envelope_bytes - len(self._envelope)
        if not self._envelope and missing <= len(data):
            envelope: bytearray | memoryview = data[:missing]
        else:
            self._envelope += data[:missing]
            envelope = self._envelope
        if len(envelope) < self._envelope_bytes:
            return []
        opening = open_envelope(envelope)
        self._envelope, self._envelope_bytes = bytearray(), 0
        if isinstance(opening, Refusal):
            return self._refuse(opening)
        return self._open(opening, data[missing:])

    def _open(self, opening: Opening, data: memoryview) -> list[Arrival | Refusal]:
        tag = str(opening.message.__struct_config__.tag)
        reason = self._check(opening.message, opening.headers)
        if reason:
            return self._refuse(Refusal(reason, tag))
        try:
            filling = _Filling(opening)
        except MemoryError as error:
            return self._refuse(Refusal(f"no memory for {opening.payload_bytes} bytes: {error}", tag))
        return self._fill(filling, data)

    def _fill(self, filling: _Filling, data: memoryview) -> list[Arrival | Refusal]:
        if len(data) > filling.missing_bytes:
            return self._refuse(
                Refusal(f"{len(data) - filling.missing_bytes} bytes more than its headers describe")
            )
        filling.fill(data)
        if filling.missing_bytes:
            self._filling = filling
            return []
        self._filling = None
        return [Arrival(filling.opening.message, filling.tensors)]

    def _refuse(self, refusal: Refusal) -> list[Arrival | Refusal]:
        """Forget what is open and skip to the next START; only the first frame of a run is answered."""
        was_skipping = self._skips
        self._envelope, self._envelope_bytes, self._filling = bytearray(), 0, None
        self._skips = True
        return [] if was_skipping else [refusal]
