"""Messages with named tensors <-> the data of frames. Pure bytes: knows no socket, stream or peer.

A message is one byte string, `u32 length | envelope | tensor bytes`, cut into frames. A frame's data, which
`checked_frames` gives a number and a checksum, starts with one byte: START opens a message, MORE goes on with
it. So a reader that lost its place finds it at the next START. The envelope is msgpack
`[id, tag, body, headers, payload bytes]`; tensor bytes are little-endian, C-contiguous, in header order,
without padding. What arrives is read step by step, tag before body before headers, and nothing is allocated
for tensors until the receiver's `check` agreed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, get_args

import ml_dtypes
import msgspec
import numpy as np

from dcnr_app.cluster.checked_frames import PREFIX_BYTES
from dcnr_app.cluster.messages import AnyMessage, TensorHeader
from dcnr_app.cluster.transport import MAX_FRAME_BYTES, HostArray
from dcnr_app.errors import InvariantError

START: Final = b"\x01"
MORE: Final = b"\x02"
LENGTH_BYTES: Final = 4
MAX_DATA_BYTES: Final = MAX_FRAME_BYTES - PREFIX_BYTES
MAX_ENVELOPE_BYTES: Final = 8 << 20
MAX_HEADERS_BYTES: Final = 1 << 20
MAX_PAYLOAD_BYTES: Final = 64 << 30
MAX_TENSORS: Final = 4096
MAX_DIMENSIONS: Final = 8

_NUMPY_DTYPES: Final[Mapping[str, np.dtype[np.generic]]] = MappingProxyType(
    {
        "float32": np.dtype("<f4"),
        "float64": np.dtype("<f8"),
        "float16": np.dtype("<f2"),
        "bfloat16": np.dtype(ml_dtypes.bfloat16),
        "int32": np.dtype("<i4"),
        "int64": np.dtype("<i8"),
    }
)
_TYPES: Final[Mapping[str, type[AnyMessage]]] = MappingProxyType(
    {str(kind.__struct_config__.tag): kind for kind in get_args(AnyMessage)}
)
# What a decoder may raise on hostile bytes: msgspec's own, bad UTF-8 and numbers, nesting beyond the stack.
_BAD_BYTES: Final = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """What opens a message; `body` and `headers` stay undecoded until the tag is known."""

    id: int
    tag: str
    body: msgspec.Raw
    headers: msgspec.Raw
    payload_bytes: int


class Refusal(msgspec.Struct, frozen=True):
    """Why bytes from a peer were not accepted; `tag` if it got that far."""

    reason: str
    tag: str = ""


class Opening(NamedTuple):
    """An accepted envelope whose headers add up; its tensors are not allocated yet."""

    message: AnyMessage
    headers: tuple[TensorHeader, ...]
    payload_bytes: int


class Outgoing(NamedTuple):
    """One message ready to be cut into frames; `payload` are byte views of the tensors, in header order."""

    envelope: bytes
    payload: tuple[memoryview, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of the message before it is cut into frames."""
        return LENGTH_BYTES + len(self.envelope) + sum(len(part) for part in self.payload)


def known_tags() -> tuple[str, ...]:
    """Tags of all messages that this build understands, sorted."""
    return tuple(sorted(_TYPES))


def tag_of(message: AnyMessage) -> str:
    """The tag under which `message` travels."""
    return str(message.__struct_config__.tag)


def encode(number: int, message: AnyMessage, tensors: Mapping[str, HostArray]) -> Outgoing:
    """`message` as it goes on the wire. Contiguous little-endian tensors are viewed, others copied.

    Raises InvariantError for what no receiver would accept (dtype, dimensions, number, size).
    """
    headers = tuple(
        TensorHeader(name=name, dtype=array.dtype.name, shape=array.shape) for name, array in tensors.items()
    )
    payload_bytes = sum(array.nbytes for array in tensors.values())
    problem = _headers_problem(headers, payload_bytes)
    raw_headers = msgspec.Raw(msgspec.msgpack.encode(headers))
    body = msgspec.Raw(msgspec.msgpack.encode(message))
    envelope = msgspec.msgpack.encode(Envelope(number, tag_of(message), body, raw_headers, payload_bytes))
    if not problem and len(raw_headers) > MAX_HEADERS_BYTES:
        problem = f"tensor headers of {len(raw_headers)} bytes, at most {MAX_HEADERS_BYTES}"
    if not problem and len(envelope) > MAX_ENVELOPE_BYTES:
        problem = f"an envelope of {len(envelope)} bytes, at most {MAX_ENVELOPE_BYTES}"
    if problem:
        raise InvariantError(f"{tag_of(message)} cannot be sent: {problem}")
    return Outgoing(envelope, tuple(_bytes_of(array) for array in tensors.values() if array.nbytes))


def frames(message: Outgoing) -> Iterator[bytes]:
    """The data of the message's frames, as it is without numbers and checksums: so a greeting travels."""
    return (b"".join(pieces) for pieces in cut(message))


def cut(message: Outgoing) -> Iterator[list[bytes | memoryview]]:
    """The data of the message's frames, at most MAX_DATA_BYTES each, in pieces that are views of it."""
    length = len(message.envelope).to_bytes(LENGTH_BYTES, "little")
    pieces: list[bytes | memoryview] = [START, length]
    room = MAX_DATA_BYTES - len(START) - LENGTH_BYTES
    for part in (memoryview(message.envelope), *message.payload):
        done = 0
        while done < len(part):
            if not room:
                yield pieces
                pieces, room = [MORE], MAX_DATA_BYTES - len(MORE)
            piece = part[done : done + room]
            pieces.append(piece)
            done += len(piece)
            room -= len(piece)
    yield pieces


def open_envelope(data: bytes | bytearray | memoryview) -> Opening | Refusal:
    """Decode an envelope: tag first, then body, then headers; a Refusal for whatever does not hold."""
    try:
        envelope = msgspec.msgpack.decode(data, type=Envelope)
    except _BAD_BYTES as error:
        return Refusal(f"not a message: {error}")
    kind = _TYPES.get(envelope.tag)
    if kind is None:
        return Refusal(f"unknown message {envelope.tag[:64]!r}", envelope.tag[:64])
    if len(envelope.headers) > MAX_HEADERS_BYTES:
        return Refusal(
            f"tensor headers of {len(envelope.headers)} bytes, at most {MAX_HEADERS_BYTES}", envelope.tag
        )
    try:
        message = msgspec.msgpack.decode(envelope.body, type=kind)
        headers = msgspec.msgpack.decode(envelope.headers, type=tuple[TensorHeader, ...])
    except _BAD_BYTES as error:
        return Refusal(f"malformed {envelope.tag}: {error}", envelope.tag)
    problem = _headers_problem(headers, envelope.payload_bytes)
    if problem:
        return Refusal(f"{envelope.tag}: {problem}", envelope.tag)
    return Opening(message, headers, envelope.payload_bytes)


def allocate(headers: Sequence[TensorHeader]) -> dict[str, HostArray]:
    """Uninitialised arrays for checked headers. Raises MemoryError."""
    return {header.name: np.empty(header.shape, _NUMPY_DTYPES[header.dtype]) for header in headers}


def bytes_view(array: HostArray) -> memoryview:
    """The bytes of a C-contiguous, non-empty array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def _bytes_of(array: HostArray) -> memoryview:
    little_endian = array.dtype.newbyteorder("<") if array.dtype.byteorder == ">" else array.dtype
    return bytes_view(np.ascontiguousarray(array, dtype=little_endian))


def _headers_problem(headers: Sequence[TensorHeader], payload_bytes: int) -> str:
    """Why the headers cannot describe `payload_bytes` bytes, or an empty text. Python's integers cannot
    overflow."""
    if len(headers) > MAX_TENSORS:
        return f"{len(headers)} tensors, at most {MAX_TENSORS}"
    if len({header.name for header in headers}) != len(headers):
        return "two tensors have one name"
    total = 0
    for header in headers:
        n_bytes, problem = _tensor_bytes(header)
        if problem:
            return f"tensor {header.name[:64]!r}: {problem}"
        total += n_bytes
    if total > MAX_PAYLOAD_BYTES:
        return f"{total} bytes of tensors, at most {MAX_PAYLOAD_BYTES}"
    if total != payload_bytes:
        return f"the headers describe {total} bytes of tensors, the envelope {payload_bytes}"
    return ""


def _tensor_bytes(header: TensorHeader) -> tuple[int, str]:
    dtype = _NUMPY_DTYPES.get(header.dtype)
    if dtype is None:
        return 0, f"unknown dtype {header.dtype[:32]!r}"
    if len(header.shape) > MAX_DIMENSIONS:
        return 0, f"{len(header.shape)} dimensions, at most {MAX_DIMENSIONS}"
    n_bytes = bound = dtype.itemsize
    for size in header.shape:
        if size < 0:
            return 0, f"negative size {size}"
        n_bytes *= size
        # Without its zeros: numpy refuses (0, 2**62) although it holds nothing.
        bound *= max(size, 1)
    if bound > MAX_PAYLOAD_BYTES:
        return 0, f"shape {header.shape} is over {MAX_PAYLOAD_BYTES} bytes"
    return n_bytes, ""
