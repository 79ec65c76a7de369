"""Clusters of made-up devices for tests of placing. Holds no test."""

from __future__ import annotations

from hypothesis import strategies as st

from dcnr_app.cluster.devices import ClusterFacts, DeviceFacts, LinkFacts
from dcnr_app.ids import PNodeId

LARGE = 1 << 40


def device(name: str, *, flops: float = 1e9, machine: str = "", **changes: object) -> DeviceFacts:
    """A device of so many FLOP/s, and as many bytes per second."""
    facts = {
        "gemm_flops": {"float32": flops},
        "memory_bytes_per_s": flops,
        "free_memory_bytes": LARGE,
        "cores": 1,
        "measured_ms": 1.0,
    }
    return DeviceFacts(pnode=PNodeId(name), machine=machine or f"machine-{name}", **(facts | changes))


def cluster(*devices: DeviceFacts, bytes_per_s: float = 1e9, round_trip_ms: float = 0.2) -> ClusterFacts:
    """These devices, every two of them joined by an equal link."""
    links = tuple(
        LinkFacts(
            source=a.pnode,
            target=b.pnode,
            bytes_per_s=bytes_per_s,
            round_trip_ms=round_trip_ms,
            measured_ms=1.0,
        )
        for a in devices
        for b in devices
        if a is not b
    )
    return ClusterFacts(devices=devices, links=links)


@st.composite
def clusters(draw: st.DrawFn, most: int = 3, memory: bool = False) -> ClusterFacts:
    """One to `most` PNodes of unequal speed, from so fast that hops decide to so slow that sharing pays; with
    `memory`, some hardly have any."""
    names = "abcdefgh"[: draw(st.integers(1, most))]
    speeds = st.sampled_from([1e5, 2e5, 1e6, 1e7, 1e9])
    sizes = st.sampled_from([LARGE, 74_560_000, 74_570_000, 74_600_000]) if memory else st.just(LARGE)
    devices = [
        device(name, flops=draw(speeds), free_memory_bytes=draw(sizes), memory_bytes_per_s=draw(speeds))
        for name in names
    ]
    links = tuple(
        LinkFacts(
            source=a.pnode,
            target=b.pnode,
            bytes_per_s=draw(st.sampled_from([1e4, 1e6, 1e8])),
            round_trip_ms=draw(st.sampled_from([0.1, 1.0, 20.0])),
        )
        for a in devices
        for b in devices
        if a is not b
    )
    return ClusterFacts(devices=tuple(devices), links=links)
