"""Frames with numbers and checksums: damage is found, repeated in order, and given up in the end."""

from __future__ import annotations

import struct
from collections import deque

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr_app.cluster.checked_frames import (
    AGAIN,
    PREFIX_BYTES,
    RECEIVED,
    WINDOW_BYTES,
    ArrivingFrames,
    SentFrames,
    is_notice,
    read_notice,
    seal,
)
from dcnr_app.errors import RefusedError


def flipped(frame: bytes, bit: int) -> bytes:
    changed = bytearray(frame)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def data_of(view: memoryview | None) -> bytes | None:
    return None if view is None else bytes(view)


def test_frame_is_number_checksum_and_data() -> None:
    head = struct.pack("<Q", 7)
    checksum = struct.pack("<Q", xxhash.xxh3_64_intdigest(head + b"abc"))
    assert seal(7, [b"ab", memoryview(b"c")]) == head + checksum + b"abc"


def test_checksum_is_the_published_one() -> None:
    """XXH3-64 of no bytes, as its specification has it."""
    assert xxhash.xxh3_64_intdigest(b"") == 0x2D06800538D394C2


def test_whole_frames_in_order_are_taken() -> None:
    sent, arriving = SentFrames(), ArrivingFrames()
    assert [data_of(arriving.take(sent.seal([data]))) for data in (b"a", b"b", b"c")] == [b"a", b"b", b"c"]
    assert arriving.notice() == b""


@pytest.mark.parametrize("bit", range(8 * (PREFIX_BYTES + 3)))
def test_every_flipped_bit_is_found_and_answered(bit: int) -> None:
    arriving = ArrivingFrames()
    assert arriving.take(flipped(seal(0, [b"abc"]), bit)) is None
    notice = memoryview(arriving.notice())
    assert is_notice(notice)
    assert read_notice(notice) == (True, 0)
    assert arriving.notice() == b""


@pytest.mark.parametrize("length", range(PREFIX_BYTES + 1))
def test_frame_that_is_too_short_is_damage(length: int) -> None:
    arriving = ArrivingFrames()
    assert arriving.take(seal(0, [b""])[:length]) is None
    assert read_notice(memoryview(arriving.notice())) == (True, 0)


def test_nothing_overtakes_a_damaged_frame() -> None:
    sent, arriving = SentFrames(), ArrivingFrames()
    first, second, third = (sent.seal([data]) for data in (b"1", b"2", b"3"))
    assert data_of(arriving.take(first)) == b"1"
    assert arriving.take(flipped(second, 130)) is None
    assert arriving.take(third) is None
    is_damaged, number = read_notice(memoryview(arriving.notice()))
    assert (is_damaged, number) == (True, 1)
    assert [data_of(arriving.take(frame)) for frame in sent.again(number)] == [b"2", b"3"]


def test_frame_that_is_damaged_three_times_ends_it() -> None:
    arriving = ArrivingFrames()
    for _ in range(2):
        assert arriving.take(flipped(seal(0, [b"x"]), 130)) is None
    with pytest.raises(RefusedError, match="frame 0 arrived damaged, time after time"):
        arriving.take(flipped(seal(0, [b"x"]), 130))


def test_damage_is_forgiven_once_the_frame_has_come() -> None:
    arriving = ArrivingFrames()
    for number in range(20):
        assert arriving.take(flipped(seal(number, [b"x"]), 130)) is None
        assert arriving.take(seal(number, [b"x"])) is not None


def test_without_repeats_the_first_damage_ends_it() -> None:
    with pytest.raises(RefusedError, match="damaged"):
        ArrivingFrames(repeats=0).take(b"")


def test_gap_without_damage_is_refused_as_http2_has_none() -> None:
    arriving = ArrivingFrames()
    arriving.take(seal(0, [b"x"]))
    with pytest.raises(RefusedError, match="frame 2 came where 1 was due"):
        arriving.take(seal(2, [b"x"]))


def test_replayed_frame_is_dropped() -> None:
    arriving = ArrivingFrames()
    frame = seal(0, [b"x"])
    assert [data_of(arriving.take(frame)) for _ in range(3)] == [b"x", None, None]


def test_receiver_tells_often_enough_that_a_sender_never_waits_for_ever() -> None:
    sent, arriving = SentFrames(), ArrivingFrames()
    for size in (1, 1000, (1 << 20) - PREFIX_BYTES):
        for _ in range(3 * WINDOW_BYTES // (size + 64 + PREFIX_BYTES) if size > 1 else 100):
            assert not sent.is_full
            arriving.take(sent.seal([bytes(size)]))
            notice = arriving.notice()
            if notice:
                is_damaged, number = read_notice(memoryview(notice))
                assert not is_damaged
                sent.received(number)


@pytest.mark.parametrize("size", [1, 1000, (1 << 20) - PREFIX_BYTES])
def test_sender_that_hears_nothing_keeps_no_more_than_its_window_and_a_frame(size: int) -> None:
    sent, n_bytes = SentFrames(), 0
    while not sent.is_full:
        n_bytes += len(sent.seal([bytes(size)])) + 64
    assert WINDOW_BYTES <= n_bytes < WINDOW_BYTES + (1 << 20) + 64


def test_notices_that_cannot_be_are_refused() -> None:
    sent = SentFrames()
    sent.seal([b"a"])
    sent.seal([b"b"])
    for number in (3, 1 << 63):
        with pytest.raises(RefusedError, match=f"frame {number}"):
            sent.received(number)
    with pytest.raises(RefusedError, match="not sent yet"):
        sent.again(2)
    sent.received(2)
    with pytest.raises(RefusedError, match="frame 1"):
        sent.again(1)


def test_peer_that_asks_for_one_frame_for_ever_is_refused() -> None:
    sent = SentFrames()
    frame = sent.seal([b"a"])
    assert [sent.again(0) for _ in range(2)] == [(frame,), (frame,)]
    with pytest.raises(RefusedError, match="time after time"):
        sent.again(0)


def test_message_data_is_no_notice() -> None:
    assert not is_notice(memoryview(b"\x01" + bytes(8)))
    assert not is_notice(memoryview(RECEIVED + bytes(9)))
    assert not is_notice(memoryview(b""))
    assert is_notice(memoryview(AGAIN + bytes(8)))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 30), st.sets(st.integers(0, 60), max_size=6), st.integers(1, 8))
def test_any_damage_gives_all_in_order_or_an_end_with_a_reason(
    n_frames: int, damaged: set[int], lag: int
) -> None:
    """The n-th frames on the wire are damaged; notices reach the sender `lag` frames later."""
    sent, arriving = SentFrames(), ArrivingFrames()
    wire, notices, taken = deque[bytes](), deque[tuple[int, bytes]](), list[bytes]()
    queue, n_sealed, n_arrived = deque[bytes](), 0, 0
    try:
        while len(taken) < n_frames:
            if queue:
                wire.append(queue.popleft())
            elif n_sealed < n_frames:
                wire.append(sent.seal([b"%d" % n_sealed]))
                n_sealed += 1
            if wire:
                frame = wire.popleft()
                data = arriving.take(flipped(frame, 130) if n_arrived in damaged else frame)
                n_arrived += 1
                taken += [bytes(data)] if data is not None else []
                notice = arriving.notice()
                if notice:
                    notices.append((n_arrived + lag, notice))
            elif notices:
                notices[0] = (0, notices[0][1])
            while notices and notices[0][0] <= n_arrived:
                is_damaged, number = read_notice(memoryview(notices.popleft()[1]))
                queue = deque(sent.again(number)) if is_damaged else queue
    except RefusedError:
        assert len(damaged) > 2
    assert taken == [b"%d" % number for number in range(len(taken))]
    if len(damaged) <= 2:
        assert len(taken) == n_frames
