"""Write messages.json: for each message type a sample, as JSON and as the bytes of its frame.

Run it after adding a message: `python -m tests.golden.make_messages`. A changed line for an old message means
that builds before and after it do not understand each other: give the message a new tag instead.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np

from dcnr_app.cluster.codec import encode, frames, tag_of
from dcnr_app.cluster.messages import AnyMessage
from dcnr_app.cluster.transport import HostArray

PATH = Path(__file__).with_name("messages.json")


def sample(kind: Any) -> Any:
    """One value of a type, the same on every run, with no field at its default by accident."""
    return msgspec.convert(_plain(msgspec.inspect.type_info(kind)), kind)


def tensors() -> dict[str, HostArray]:
    """What a golden message carries when it carries tensors."""
    return {"x": np.arange(3, dtype=np.float32), "empty": np.zeros((0, 2), np.int64)}


def frame(message: AnyMessage) -> bytes:
    """The message's only frame."""
    carried = tensors() if tag_of(message) == "hop.v1" else {}
    (only,) = frames(encode(1, message, carried))
    return only


def _plain(info: msgspec.inspect.Type) -> Any:
    match info:
        case msgspec.inspect.StructType():
            plain = {field.encode_name: _plain(field.type) for field in info.fields}
            if info.array_like:
                return list(plain.values())
            return {info.tag_field: info.tag, **plain} if info.tag_field else plain
        case msgspec.inspect.UnionType():
            return _plain(info.types[0])
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType():
            return [_plain(info.item_type)]
        case msgspec.inspect.DictType():
            return {_plain(info.key_type): _plain(info.value_type)}
        case msgspec.inspect.LiteralType():
            return info.values[0]
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.IntType():
            return 7
        case msgspec.inspect.FloatType():
            return 0.1
        case msgspec.inspect.StrType():
            return "é"
        case msgspec.inspect.BytesType():
            return b"\x00\xff"
    raise TypeError(f"no sample for {info}")


def main() -> None:
    """Rewrite the file."""
    golden = {}
    for kind in get_args(AnyMessage):
        message = sample(kind)
        golden[tag_of(message)] = {
            "message": json.loads(msgspec.json.encode(message)),
            "frame": frame(message).hex(),
        }
    PATH.write_text(json.dumps(golden, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
