"""Frames that carry a number and a checksum, and what happens when one arrives damaged. Pure.

A frame on a stream is `u64 number | u64 XXH3 | data`, the checksum over number and data, little-endian. TLS
proves that bytes crossed the network unharmed; this finds what was harmed before or after that, in memory.
A damaged frame is answered with AGAIN; what comes behind it is dropped until it has come anew, so that
nothing overtakes it. So the sender keeps its latest frames, and waits once too many bytes were not yet taken;
what the receiver has taken it says with RECEIVED.

Loss, repetition and another order within a stream are no accidents here, as HTTP/2 over TCP has none of them:
numbers that do not follow each other are the work of a broken peer, unless they follow a damaged frame.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import xxhash

from dcnr_app.errors import RefusedError

_NUMBER_BYTES: Final = 8
_CHECKSUM_BYTES: Final = 8
PREFIX_BYTES: Final = _NUMBER_BYTES + _CHECKSUM_BYTES
WINDOW_BYTES: Final = 8 << 20
"""Bytes that one stream may have under way before it waits: 160 MB/s at 50 ms of round trip."""
_TELL_EVERY_BYTES: Final = WINDOW_BYTES // 8
_OBJECT_BYTES: Final = 64
"""What a kept frame costs beside its bytes; without it, tiny frames would be kept for nothing."""
_MOST_REPEATS: Final = 2

# First bytes of a frame's data, beside START and MORE of the codec. They only go from receiver to sender.
RECEIVED: Final = b"\x03"
AGAIN: Final = b"\x04"

Piece = bytes | bytearray | memoryview


def seal(number: int, pieces: Sequence[Piece]) -> bytes:
    """One frame; its pieces are copied once, here."""
    head = number.to_bytes(_NUMBER_BYTES, "little")
    return b"".join((head, _checksum(head, pieces).to_bytes(_CHECKSUM_BYTES, "little"), *pieces))


class SentFrames:
    """One stream's frames that its receiver has not yet said to have taken."""

    def __init__(self) -> None:
        self._kept: deque[bytes] = deque()
        self._first = 0
        self._n_bytes = 0
        self._repeats = (-1, 0)

    @property
    def is_full(self) -> bool:
        """Whether to wait until the receiver has taken more."""
        return self._n_bytes >= WINDOW_BYTES

    def seal(self, pieces: Sequence[Piece]) -> bytes:
        """The next frame, which is kept."""
        frame = seal(self._first + len(self._kept), pieces)
        self._kept.append(frame)
        self._n_bytes += _cost(frame)
        return frame

    def received(self, number: int) -> None:
        """The receiver has taken all frames before `number`. Raises RefusedError if there were never so
        many."""
        self._check(number)
        while self._first < number:
            self._n_bytes -= _cost(self._kept.popleft())
            self._first += 1

    def again(self, number: int) -> Sequence[bytes]:
        """What to send next: the frame `number`, which arrived damaged, and all behind it. Raises
        RefusedError if it is not there or was repeated too often."""
        self.received(number)
        if number >= self._first + len(self._kept):
            raise RefusedError(f"it asks for frame {number}, which was not sent yet")
        asked = self._repeats[1] + 1 if self._repeats[0] == number else 1
        self._repeats = (number, asked)
        if asked > _MOST_REPEATS:
            raise RefusedError(_hopeless(number, asked))
        return tuple(self._kept)

    def _check(self, number: int) -> None:
        if not self._first <= number <= self._first + len(self._kept):
            raise RefusedError(
                f"it speaks of frame {number}, not of {self._first} to {self._first + len(self._kept)}"
            )


class ArrivingFrames:
    """One stream's frames as they arrive. `repeats` is how often a damaged one is asked for again."""

    def __init__(self, repeats: int = _MOST_REPEATS) -> None:
        self._most_repeats = repeats
        self._next = 0
        self._n_damaged = 0
        self._untold_bytes = 0
        self._notice = b""

    def take(self, frame: bytes) -> memoryview | None:
        """The frame's data if it is the next one and whole; None if it is to be dropped.

        Raises RefusedError if the same frame is damaged too often, or if numbers do not follow.
        """
        view = memoryview(frame)
        head, data = view[:_NUMBER_BYTES], view[PREFIX_BYTES:]
        checksum = int.from_bytes(view[_NUMBER_BYTES:PREFIX_BYTES], "little")
        if len(frame) <= PREFIX_BYTES or _checksum(head, (data,)) != checksum:
            self._damaged()
            return None
        number = int.from_bytes(head, "little")
        if number < self._next or (number > self._next and self._n_damaged):
            return None  # sent before the sender heard of the damage
        if number > self._next:
            raise RefusedError(f"frame {number} came where {self._next} was due")
        self._next += 1
        self._n_damaged = 0
        self._untold_bytes += _cost(frame)
        if self._untold_bytes >= _TELL_EVERY_BYTES:
            self._untold_bytes = 0
            self._notice = RECEIVED + self._next.to_bytes(_NUMBER_BYTES, "little")
        return data

    def notice(self) -> bytes:
        """The data of a frame to be sent back, once; empty if there is nothing to say."""
        notice, self._notice = self._notice, b""
        return notice

    def _damaged(self) -> None:
        self._n_damaged += 1
        if self._n_damaged > self._most_repeats:
            raise RefusedError(_hopeless(self._next, self._n_damaged))
        self._notice = AGAIN + self._next.to_bytes(_NUMBER_BYTES, "little")


def is_notice(data: memoryview) -> bool:
    """Whether a frame's data is a notice of the receiver, and no part of a message."""
    return len(data) == 1 + _NUMBER_BYTES and data[0] in (RECEIVED[0], AGAIN[0])


def read_notice(data: memoryview) -> tuple[bool, int]:
    """Whether the sender must go back, and the number that the notice is about."""
    return data[0] == AGAIN[0], int.from_bytes(data[1:], "little")


def _hopeless(number: int, times: int) -> str:
    return f"frame {number} arrived damaged, time after time ({times}): its link is bad"


def _checksum(head: Piece, pieces: Sequence[Piece]) -> int:
    # 18 us a MiB; zlib's CRC-32 took 270, a fifth of all that a hop costs.
    checksum = xxhash.xxh3_64(head)
    for piece in pieces:
        checksum.update(piece)
    return checksum.intdigest()


def _cost(frame: bytes) -> int:
    return len(frame) + _OBJECT_BYTES
