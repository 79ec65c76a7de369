"""What is known of PNodes' devices and of the links between them. Pure data; knows no network and no plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dcnr_app.ids import PNodeId

ASSUMED_FLOPS = 5e10
"""FLOP/s of a device that was not measured. All such devices are taken as equal: only ratios matter then."""
ASSUMED_MEMORY_BYTES_PER_S = 5e9
"""Bytes per second of row-wise kernels on a device that was not measured."""
LOOPBACK_BYTES_PER_S, LOOPBACK_ROUND_TRIP_MS = 0.9e9, 0.3
"""Two processes of one machine over mutual TLS, as `benchmarks/hop.py` measures it on two cores."""
LAN_BYTES_PER_S, LAN_ROUND_TRIP_MS = 0.11e9, 1.0
"""Two machines whose link was not measured: gigabit Ethernet."""
SHARED_MEMORY_KINDS = frozenset({"cpu", "metal"})
"""Kinds of device whose memory is the machine's, so that PNodes of one machine draw on the same bytes."""


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One PNode's device as it was measured; figures of 0 and None stand for what is not known.

    `gemm_flops` is FLOP/s of matrix products by dtype. `memory_bytes_per_s` counts bytes read and written by
    row-wise kernels. `free_memory_bytes` is what the PNode may still take, its owner's limit applied.
    `measured_ms` is the wall-clock time of the measurement, in ms since 1970.
    """

    pnode: PNodeId
    machine: str = ""
    kind: str = "cpu"
    name: str = ""
    device_class: str = ""
    gemm_flops: Mapping[str, float] = {}
    memory_bytes_per_s: float = 0.0
    free_memory_bytes: int | None = None
    total_memory_bytes: int | None = None
    cores: int = 0
    measured_ms: float = 0.0

    def flops_per_s(self, dtype: str) -> float:
        """FLOP/s of matrix products in `dtype`; without a figure for it the slowest one measured."""
        return self.gemm_flops.get(dtype) or min(self.gemm_flops.values(), default=0.0) or ASSUMED_FLOPS

    @property
    def row_bytes_per_s(self) -> float:
        """Bytes per second of row-wise work."""
        return self.memory_bytes_per_s or ASSUMED_MEMORY_BYTES_PER_S


class LinkFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One direction between two PNodes as it was measured."""

    source: PNodeId
    target: PNodeId
    bytes_per_s: float
    round_trip_ms: float
    measured_ms: float = 0.0


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The PNodes that a plan may use, in the order that placement hints count them, and their links."""

    devices: tuple[DeviceFacts, ...]
    links: tuple[LinkFacts, ...] = ()

    @property
    def pnodes(self) -> tuple[PNodeId, ...]:
        """Ids in order."""
        return tuple(device.pnode for device in self.devices)

    def device(self, pnode: PNodeId) -> DeviceFacts:
        """Facts of one PNode; the assumed ones for a PNode that is not known."""
        return next((d for d in self.devices if d.pnode == pnode), DeviceFacts(pnode=pnode))

    def link(self, source: PNodeId, target: PNodeId) -> LinkFacts:
        """The measured link, else its other direction, else an assumption: loopback within one machine and
        where no machine is named, a LAN between two."""
        found = {(link.source, link.target): link for link in self.links}
        if (source, target) in found:
            return found[source, target]
        if (target, source) in found:
            return msgspec.structs.replace(found[target, source], source=source, target=target)
        here, there = self.device(source).machine, self.device(target).machine
        is_near = here == there or not here or not there
        return LinkFacts(
            source=source,
            target=target,
            bytes_per_s=LOOPBACK_BYTES_PER_S if is_near else LAN_BYTES_PER_S,
            round_trip_ms=LOOPBACK_ROUND_TRIP_MS if is_near else LAN_ROUND_TRIP_MS,
        )

    def only(self, pnodes: Sequence[PNodeId]) -> ClusterFacts:
        """The facts of these PNodes, in their order; assumed ones for those that are not known."""
        kept = set(pnodes)
        return ClusterFacts(
            devices=tuple(self.device(pnode) for pnode in pnodes),
            links=tuple(link for link in self.links if {link.source, link.target} <= kept),
        )


def equal_facts(pnodes: Sequence[PNodeId]) -> ClusterFacts:
    """Facts where nothing was measured: equal devices without a memory limit, joined by loopback."""
    return ClusterFacts(devices=tuple(DeviceFacts(pnode=pnode) for pnode in pnodes))
