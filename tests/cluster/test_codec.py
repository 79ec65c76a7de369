"""Messages to frames and back: golden bytes, round trips, and everything that does not add up."""

from __future__ import annotations

import json
import struct
import tracemalloc
from typing import Any, get_args

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr_app.cluster import reassembly
from dcnr_app.cluster.codec import (
    MAX_DATA_BYTES,
    MAX_ENVELOPE_BYTES,
    MAX_TENSORS,
    Opening,
    Refusal,
    encode,
    frames,
    known_tags,
    open_envelope,
    tag_of,
)
from dcnr_app.cluster.messages import AnyMessage, LoadState
from dcnr_app.cluster.reassembly import Arrival, Reassembler
from dcnr_app.cluster.transport import MAX_FRAME_BYTES, HostArray
from dcnr_app.errors import InvariantError
from dcnr_app.ids import SessionId
from tests.contracts.transport import DTYPES, applied, hop, random_bits, same_bits
from tests.golden.make_messages import PATH, frame, tensors

GOLDEN: dict[str, dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
KINDS = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyMessage)}


def welcome() -> Reassembler:
    return Reassembler(lambda message, headers: "")


def feed(
    reassembler: Reassembler, message: AnyMessage, carried: dict[str, HostArray]
) -> list[Arrival | Refusal]:
    return [result for part in frames(encode(1, message, carried)) for result in reassembler.feed(part)]


# golden bytes


def test_every_message_has_golden_bytes() -> None:
    assert set(GOLDEN) == set(known_tags()) == set(KINDS)


@pytest.mark.parametrize("tag", sorted(KINDS))
def test_golden_bytes_are_what_is_sent_and_understood(tag: str) -> None:
    golden = GOLDEN[tag]
    message = msgspec.convert(golden["message"], KINDS[tag], strict=False)
    assert frame(message).hex() == golden["frame"]
    (arrival,) = welcome().feed(bytes.fromhex(golden["frame"]))
    assert isinstance(arrival, Arrival)
    assert arrival.message == message
    if arrival.tensors:
        assert all(same_bits(arrival.tensors[name], array) for name, array in tensors().items())


def test_frame_layout_is_the_documented_one() -> None:
    (data,) = frames(encode(5, applied(3), {"x": np.array([1.0, -2.0], np.float32)}))
    length = int.from_bytes(data[1:5], "little")
    envelope = msgspec.msgpack.decode(data[5 : 5 + length])
    assert data[:1] == b"\x01"
    assert envelope == [
        5,
        "applied.v1",
        {"type": "applied.v1", "session": "s", "generation": 1, "step": 3},
        [["x", "float32", [2]]],
        8,
    ]
    assert data[5 + length :] == struct.pack("<2f", 1.0, -2.0)


# round trips


def values(info: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    """Plain values of a type, for msgspec.convert."""
    match info:
        case msgspec.inspect.StructType():
            fields = {field.encode_name: values(field.type) for field in info.fields}
            if info.array_like:
                return st.tuples(*fields.values())
            tag = {info.tag_field: st.just(info.tag)} if info.tag_field else {}
            return st.fixed_dictionaries({**tag, **fields})
        case msgspec.inspect.UnionType():
            return st.one_of(*(values(choice) for choice in info.types))
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType():
            return st.lists(values(info.item_type), max_size=3)
        case msgspec.inspect.DictType():
            return st.dictionaries(values(info.key_type), values(info.value_type), max_size=3)
        case msgspec.inspect.LiteralType():
            return st.sampled_from(info.values)
        case msgspec.inspect.IntType():
            low = -(2**63) if info.ge is None else info.ge
            return st.integers(low, 2**63 - 1 if info.le is None else info.le)
        case msgspec.inspect.FloatType():
            low, high = (info.gt if info.ge is None else info.ge), (info.lt if info.le is None else info.le)
            return st.floats(
                low, high, exclude_min=info.gt is not None, exclude_max=info.lt is not None, allow_nan=False
            )
    simple: dict[type, st.SearchStrategy[Any]] = {
        msgspec.inspect.BoolType: st.booleans(),
        msgspec.inspect.StrType: st.text(max_size=20),
        msgspec.inspect.BytesType: st.binary(max_size=20),
        msgspec.inspect.NoneType: st.none(),
    }
    return simple[type(info)]


@pytest.mark.parametrize("tag", sorted(KINDS))
def test_any_message_survives_the_round_trip(tag: str) -> None:
    kind = KINDS[tag]

    @settings(max_examples=20, deadline=None)
    @given(values(msgspec.inspect.type_info(kind)))
    def check(plain: Any) -> None:
        message = msgspec.convert(plain, kind)
        assert feed(welcome(), message, {}) == [Arrival(message, {})]

    check()


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=10),
        st.tuples(st.lists(st.integers(0, 4), max_size=8), st.sampled_from(DTYPES)),
        max_size=6,
    )
)
def test_any_tensors_survive_the_round_trip(specs: dict[str, tuple[list[int], str]]) -> None:
    sent = {name: random_bits(tuple(shape), dtype) for name, (shape, dtype) in specs.items()}
    (arrival,) = feed(welcome(), applied(1), sent)
    assert isinstance(arrival, Arrival)
    assert list(arrival.tensors) == list(sent)
    assert all(same_bits(arrival.tensors[name], sent[name]) for name in sent)


@pytest.mark.parametrize("difference", range(-2, 3))
def test_messages_around_the_size_of_one_frame_are_cut_so_that_a_frame_is_one_mebibyte(
    difference: int,
) -> None:
    overhead = encode(1, hop(1, "x"), {"x": np.zeros(1000, np.float16)}).n_bytes - 2000
    target = MAX_DATA_BYTES - 1 + difference
    n_values = (target - overhead - 64) // 2
    sent = {"x": random_bits((n_values,), "float16")}
    padding = target - encode(1, hop(1, ""), sent).n_bytes
    message = hop(1, "s" * (padding - (1 if padding > 31 else 0)))
    parts = list(frames(encode(1, message, sent)))
    assert sum(len(part) - 1 for part in parts) == target
    assert len(parts[0]) == min(target + 1, MAX_DATA_BYTES)
    assert len(parts) == (1 if difference <= 0 else 2)
    (arrival,) = feed(welcome(), message, sent)
    assert isinstance(arrival, Arrival)
    assert same_bits(arrival.tensors["x"], sent["x"])


def test_envelope_over_one_frame_arrives() -> None:
    message = LoadState(session=SessionId("s"), generation=1, parameter="p" * 3_000_000)
    sent = {"x": random_bits((500_000,), "int32")}
    (arrival,) = feed(welcome(), message, sent)
    assert isinstance(arrival, Arrival)
    assert arrival.message == message
    assert same_bits(arrival.tensors["x"], sent["x"])


def test_bfloat16_travels_as_its_two_bytes() -> None:
    (data,) = frames(encode(1, applied(1), {"x": np.array([1.0, -0.0], ml_dtypes.bfloat16)}))
    assert data[-4:] == b"\x80\x3f\x00\x80"


def test_frames_of_a_large_tensor_are_made_one_at_a_time() -> None:
    sent = {"x": np.ones(16 << 20, np.float32)}
    tracemalloc.start()
    try:
        n_bytes = sum(len(part) for part in frames(encode(1, hop(1), sent)))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert n_bytes > 64 << 20
    assert peak_bytes < 4 << 20


def test_unknown_fields_are_ignored() -> None:
    body = {"type": "applied.v1", "session": "s", "generation": 1, "step": 3, "added": [1, {"later": None}]}
    opening = open_envelope(envelope(tag="applied.v1", body=body))
    assert opening == Opening(applied(3), (), 0)


@pytest.mark.parametrize(
    "carried",
    [
        {"x": np.zeros(1, np.complex64)},
        {"x": np.zeros(1, bool)},
        {"x": np.zeros((1,) * 9, np.float32)},
        {f"t{i}": np.zeros(0, np.float32) for i in range(MAX_TENSORS + 1)},
    ],
)
def test_sender_refuses_what_no_receiver_takes(carried: dict[str, HostArray]) -> None:
    with pytest.raises(InvariantError, match="cannot be sent"):
        encode(1, applied(1), carried)


def test_sender_refuses_a_body_over_the_limit() -> None:
    with pytest.raises(InvariantError, match="an envelope of"):
        encode(1, hop(1, "s" * MAX_ENVELOPE_BYTES), {})


# what does not add up


def envelope(
    tag: object = "hop.v1", body: object = None, headers: object = (), payload_bytes: object = 0
) -> bytes:
    body = msgspec.to_builtins(hop(1)) if body is None else body
    return msgspec.msgpack.encode([1, tag, body, headers, payload_bytes])


def nested(depth: int) -> list[Any]:
    deep: list[Any] = []
    for _ in range(depth):
        deep = [deep]
    return deep


def x(shape: object, dtype: object = "float32") -> list[list[object]]:
    return [["x", dtype, shape]]


BAD_ENVELOPES = {
    "empty": b"",
    "no array": msgspec.msgpack.encode({"id": 1}),
    "too few fields": msgspec.msgpack.encode([1, "hop.v1"]),
    "tag is no text": envelope(tag=5),
    "unknown tag": envelope(tag="hop.v9"),
    "empty tag": envelope(tag=""),
    "tag of the body differs": envelope(body=msgspec.to_builtins(applied(1))),
    "body lacks a field": envelope(body={"type": "hop.v1"}),
    "body field of another type": envelope(body={**msgspec.to_builtins(hop(1)), "step": "1"}),
    "unknown choice": envelope(body={**msgspec.to_builtins(hop(1)), "direction": "sideways"}),
    "bad UTF-8": envelope().replace(b"train", b"\xff\xff\xff\xff\xff"),
    "trailing bytes": envelope() + b"\x00",
    "payload size is negative": envelope(payload_bytes=-1),
    "payload size is no number": envelope(payload_bytes="0"),
    "payload without headers": envelope(payload_bytes=4),
    "headers are no array": envelope(headers={"x": 1}),
    "header lacks its shape": envelope(headers=[["x", "float32"]]),
    "name is no text": envelope(headers=[[1, "float32", [1]]], payload_bytes=4),
    "one name twice": envelope(headers=x([1]) * 2, payload_bytes=8),
    "unknown dtype": envelope(headers=x([1], "float8"), payload_bytes=1),
    "numpy's own dtype text": envelope(headers=x([1], "|O"), payload_bytes=8),
    "dtype is no text": envelope(headers=x([1], None), payload_bytes=4),
    "negative size": envelope(headers=x([-1]), payload_bytes=4),
    "two negative sizes": envelope(headers=x([-2, -2]), payload_bytes=16),
    "size is a fraction": envelope(headers=x([1.5]), payload_bytes=6),
    "size is a boolean": envelope(headers=x([True]), payload_bytes=4),
    "size is a text": envelope(headers=x(["1"]), payload_bytes=4),
    "size is nothing": envelope(headers=x([None]), payload_bytes=4),
    "shape is no array": envelope(headers=x(4), payload_bytes=16),
    "one byte too few": envelope(headers=x([2]), payload_bytes=7),
    "one byte too many": envelope(headers=x([2]), payload_bytes=9),
    "product overflows 64 bits": envelope(headers=x([1 << 32, 1 << 32]), payload_bytes=0),
    "product overflows with the item size": envelope(headers=x([1 << 62]), payload_bytes=0),
    "size over 64 bits unsigned": envelope(headers=x([(1 << 64) - 1]), payload_bytes=4),
    "huge but empty": envelope(headers=x([0, 1 << 62]), payload_bytes=0),
    "ten terabytes": envelope(headers=x([10 << 40, 1]), payload_bytes=40 << 40),
    "many of 64 GiB": envelope(
        headers=[[str(i), "float32", [1 << 34]] for i in range(9)], payload_bytes=9 << 36
    ),
    "nine dimensions": envelope(headers=x([1] * 9), payload_bytes=4),
    "a million dimensions": envelope(headers=x([1] * 1_000_000), payload_bytes=4),
    "too many tensors": envelope(headers=[[str(i), "int32", [0]] for i in range(MAX_TENSORS + 1)]),
    "headers too big": envelope(headers=[["n" * (1 << 20), "int32", [0]]]),
    "nested too deep": msgspec.msgpack.encode([1, "hop.v1", {}, [], 0])[:-1] + b"\x91" * 100_000 + b"\x00",
    "body nested too deep": b"\x95\x01\xa6hop.v1" + b"\x91" * 100_000 + b"\x00\x90\x00",
    "array longer than the data": b"\xdd\xff\xff\xff\xff",
    "text longer than the data": b"\x95\x01\xdb\xff\xff\xff\xff",
}


@pytest.mark.parametrize("case", BAD_ENVELOPES)
def test_envelope_that_does_not_add_up_is_refused_before_check(case: str) -> None:
    checked: list[AnyMessage] = []
    reassembler = Reassembler(lambda message, headers: checked.append(message) or "")  # type: ignore[func-returns-value]
    data = BAD_ENVELOPES[case]
    results = []
    start = b"\x01" + len(data).to_bytes(4, "little") + data
    for begin in range(0, len(start), MAX_FRAME_BYTES - 1):
        part = start[begin : begin + MAX_FRAME_BYTES - 1]
        results += reassembler.feed(part if begin == 0 else b"\x02" + part)
    (refusal,) = results
    assert isinstance(refusal, Refusal)
    assert 0 < len(refusal.reason) < 500
    assert not checked
    assert feed(reassembler, applied(1), {}) == [Arrival(applied(1), {})]


def test_refusal_names_an_unknown_tag() -> None:
    assert open_envelope(envelope(tag="hop.v9")) == Refusal("unknown message 'hop.v9'", "hop.v9")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([b"", b"\x01", b"\x02"]), st.binary(max_size=200)), max_size=6))
def test_random_frames_never_raise_and_never_stop_the_stream(parts: list[tuple[bytes, bytes]]) -> None:
    reassembler = welcome()
    for mark, data in parts:
        for result in reassembler.feed(mark + data):
            assert isinstance(result, Refusal)
    assert Arrival(applied(1), {}) in feed(reassembler, applied(1), {})


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_flipped_and_cut_bytes_never_raise(data: st.DataObject) -> None:
    sent = {"x": np.arange(6, dtype=np.float32), "y": np.zeros((2, 0), np.int64)}
    (good,) = frames(encode(1, hop(1), sent))
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    del bad[data.draw(st.integers(0, len(bad))) :]
    reassembler = welcome()
    reassembler.feed(bytes(bad))
    results = feed(reassembler, applied(1), {})
    assert results[-1] == Arrival(applied(1), {})


def test_check_sees_headers_before_memory_is_taken_and_its_reason_is_the_refusal() -> None:
    seen: list[tuple[int, ...]] = []

    def check(message: AnyMessage, headers: Any) -> str:
        seen.extend(header.shape for header in headers)
        return "the plan expects (4, 4)"

    reassembler = Reassembler(check)
    sent = {"x": np.zeros((4096, 4096), np.float32)}
    results: list[Arrival | Refusal] = []
    tracemalloc.start()
    try:
        for part in frames(encode(1, hop(1), sent)):
            results += reassembler.feed(part)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert results == [Refusal("the plan expects (4, 4)", "hop.v1")]
    assert seen == [(4096, 4096)]
    assert peak_bytes < 8 << 20


def test_allocation_that_fails_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(headers: object) -> dict[str, HostArray]:
        raise MemoryError("the machine is full")

    monkeypatch.setattr(reassembly, "allocate", full)
    refusal, *_ = feed(welcome(), hop(1), {"x": np.zeros(3, np.float32)})
    assert refusal == Refusal("no memory for 12 bytes: the machine is full", "hop.v1")


def test_message_cut_short_is_told_with_the_next_one() -> None:
    reassembler = welcome()
    first, *_ = frames(encode(1, hop(1), {"x": np.zeros(1 << 20, np.float32)}))
    assert reassembler.feed(first) == []
    refusal, arrival = feed(reassembler, applied(1), {})
    assert isinstance(refusal, Refusal)
    assert "cut short" in refusal.reason
    assert arrival == Arrival(applied(1), {})


def test_stray_bytes_are_refused_once() -> None:
    reassembler = welcome()
    assert len(reassembler.feed(b"\x02abc")) == 1
    assert reassembler.feed(b"\x02abc") == []
    assert tag_of(applied(1)) == "applied.v1"
