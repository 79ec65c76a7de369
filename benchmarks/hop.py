"""Small-hop round trip and large-tensor throughput of both transports on loopback, as JSON. Not a test."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dcnr_app.cluster.grpc_transport import GrpcTransport
from dcnr_app.cluster.identity import ClusterAuthority, fingerprint
from dcnr_app.cluster.memory_transport import MemoryHub, MemoryTransport
from dcnr_app.cluster.messages import AnyMessage, Hop, TensorHeader
from dcnr_app.cluster.transport import HostArray, Member, PeerTransport
from dcnr_app.ids import PNodeId

A, B = PNodeId("a"), PNodeId("b")
HOP = Hop(
    session="bench",
    generation=1,
    request=1,
    phase="train",
    step=0,
    microbatch=0,
    direction="F",
    segment=0,
    slot="x",
)


class Counter:
    """Counts what arrives and wakes whoever waits for it."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[int] = asyncio.Queue()
        self.is_closing = False

    def check(self, sender: PNodeId, message: AnyMessage, headers: Sequence[TensorHeader]) -> str:
        """Everything is welcome."""
        return ""

    def deliver(self, sender: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        """Count the bytes."""
        self.arrived.put_nowait(sum(array.nbytes for array in tensors.values()))

    def lost(self, peer: PNodeId, reason: str) -> None:
        """A benchmark that loses its peer has no result."""
        if not self.is_closing:
            raise RuntimeError(reason)


def grpc_pair() -> tuple[PeerTransport, PeerTransport, list[str]]:
    """Two transports over real TLS, and their certificates' fingerprints."""
    authority = ClusterAuthority.create("bench")
    credentials = [authority.issue(pnode, "bench", "worker") for pnode in (A, B)]
    first, second = (
        GrpcTransport(pnode, own, "bench") for pnode, own in zip((A, B), credentials, strict=True)
    )
    return first, second, [fingerprint(own.cert_pem) for own in credentials]


def memory_pair() -> tuple[PeerTransport, PeerTransport, list[str]]:
    """Two transports in one process."""
    hub = MemoryHub()
    return MemoryTransport(hub, A), MemoryTransport(hub, B), ["", ""]


async def round_trips(pair: tuple[PeerTransport, PeerTransport], boxes: Sequence[Counter], n: int) -> Any:
    """Milliseconds of n round trips of a 4 KiB tensor, one after the other."""
    tensors = {"x": np.ones(1024, np.float32)}
    times_ms = []
    for _ in range(n):
        begin = time.perf_counter()
        await pair[0].send(B, HOP, tensors)
        await boxes[1].arrived.get()
        await pair[1].send(A, HOP, tensors)
        await boxes[0].arrived.get()
        times_ms.append((time.perf_counter() - begin) * 1000)
    times_ms.sort()
    return {"median_ms": statistics.median(times_ms), "p99_ms": times_ms[int(n * 0.99)]}


async def throughput(
    pair: tuple[PeerTransport, PeerTransport], boxes: Sequence[Counter], n: int, n_bytes: int
) -> float:
    """GB/s of n tensors of n_bytes each, from the first send to the last arrival."""
    tensors = {"x": np.ones(n_bytes // 4, np.float32)}
    begin = time.perf_counter()
    for _ in range(n):
        await pair[0].send(B, HOP, tensors)
    received = sum([await boxes[1].arrived.get() for _ in range(n)])
    return received / (time.perf_counter() - begin) / 1e9


async def measure(name: str, n: int) -> dict[str, Any]:
    """All figures of one transport."""
    first, second, prints = grpc_pair() if name == "grpc" else memory_pair()
    pair, boxes = (first, second), (Counter(), Counter())
    addresses = [await transport.start(box) for transport, box in zip(pair, boxes, strict=True)]
    members = [
        Member(pnode=pnode, address=address, fingerprint=print_, role="worker")
        for pnode, address, print_ in zip((A, B), addresses, prints, strict=True)
    ]
    for transport in pair:
        transport.set_members(members)
    await round_trips(pair, boxes, 50)  # dials and warms up
    result = {
        "round_trip_4KiB": await round_trips(pair, boxes, n),
        "GB_per_s": {
            f"{mib}MiB": await throughput(pair, boxes, max(2, 256 // mib), mib << 20) for mib in (1, 8, 64)
        },
    }
    for box in boxes:
        box.is_closing = True
    for transport in pair:
        await transport.close()
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--round-trips", type=int, default=1000)
    n = parser.parse_args().round_trips
    print(json.dumps({name: asyncio.run(measure(name, n)) for name in ("memory", "grpc")}, indent=2))


if __name__ == "__main__":
    main()
