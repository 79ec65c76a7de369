"""Device facts of this machine's PNodes, from what was measured and what the owner allows. IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dcnr_app.cluster.devices import (
    ASSUMED_FLOPS,
    ASSUMED_MEMORY_BYTES_PER_S,
    ClusterFacts,
    DeviceFacts,
    LinkFacts,
)
from dcnr_app.cluster.limits import limited, threads_for
from dcnr_app.engine.device import device_summary
from dcnr_app.engine.measure import Measurement, MemoryNow, kept_measurement, memory_now
from dcnr_app.errors import InvalidError, UserError
from dcnr_app.ids import PNodeId
from dcnr_app.limits import Limits

THIS_MACHINE = "this machine"
_MOST_FACTS_BYTES = 16 << 20


class Device(NamedTuple):
    """Which device a PNode runs on, and on which machine."""

    machine: str
    kind: str = "cpu"
    name: str = ""


def device_facts(
    pnode: PNodeId, device: Device, measurement: Measurement, memory: MemoryNow, limits: Limits
) -> DeviceFacts:
    """What placement is told of a PNode: its measurement, and the free memory that its owner leaves it."""
    facts = DeviceFacts(
        pnode=pnode,
        machine=device.machine,
        kind=device.kind,
        name=device.name,
        device_class=measurement.device_class,
        gemm_flops=measurement.gemm_flops,
        memory_bytes_per_s=measurement.memory_bytes_per_s,
        free_memory_bytes=memory.free_bytes,
        total_memory_bytes=memory.total_bytes,
        cores=measurement.threads,
        measured_ms=measurement.wall_ms,
    )
    return limited(facts, limits)


def local_facts(pnodes: Sequence[PNodeId], folder: Path, kind: str, limits: Limits) -> ClusterFacts:
    """Facts of worker processes that would share this machine's cores. `kind` is the device class whose
    measurement is looked for in `folder`; without one, speed is assumed in proportion to threads."""
    summary = device_summary()
    threads = threads_for(limits, summary.n_cores, len(pnodes))
    found = kept_measurement(folder, kind, threads) or Measurement(
        device_class="",
        threads=threads,
        gemm_flops={"float32": ASSUMED_FLOPS * threads},
        memory_bytes_per_s=ASSUMED_MEMORY_BYTES_PER_S * threads,
        wall_ms=0,
    )
    # More threads than cores take turns.
    share = min(1.0, threads_for(limits, summary.n_cores) / (threads * len(pnodes)))
    found = msgspec.structs.replace(
        found,
        gemm_flops={dtype: share * flops for dtype, flops in found.gemm_flops.items()},
        memory_bytes_per_s=share * found.memory_bytes_per_s,
    )
    device = Device(THIS_MACHINE, name=summary.processor)
    memory = memory_now()
    return ClusterFacts(devices=tuple(device_facts(pnode, device, found, memory, limits) for pnode in pnodes))


def read_facts(path: Path) -> ClusterFacts:
    """Facts from a JSON file of `devices` and `links`. Raises UserError if it cannot be opened, InvalidError
    if it is no such file."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(
            "the facts cannot be read", where=str(path), why=error.strerror or str(error)
        ) from error
    try:
        if len(raw) > _MOST_FACTS_BYTES:
            raise ValueError(f"it has {len(raw)} bytes, at most {_MOST_FACTS_BYTES}")
        return _checked(msgspec.json.decode(raw, type=ClusterFacts))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidError(
            "these are no facts of a cluster",
            where=str(path),
            why=str(error),
            fix='expected {"devices": [{"pnode": …, "gemm_flops": {"float32": …}, …}], "links": […]}',
        ) from error


def told_facts(devices: Sequence[Mapping[str, Any]], links: Sequence[LinkFacts] = ()) -> ClusterFacts:
    """Facts of PNodes as plain data, as the agents of a cluster tell them. Raises InvalidError."""
    try:
        return _checked(
            ClusterFacts(devices=msgspec.convert(devices, tuple[DeviceFacts, ...]), links=tuple(links))
        )
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidError(
            "what a PNode says of its device cannot be read",
            why=str(error),
            fix="use the same version of dcnr-app on every machine",
        ) from error


def _checked(facts: ClusterFacts) -> ClusterFacts:
    """Facts that can be reckoned with. Raises ValueError."""
    if not facts.devices or len(set(facts.pnodes)) != len(facts.devices):
        raise ValueError("expected at least one device, every one with a PNode id of its own")
    for device in facts.devices:
        rates = (*device.gemm_flops.values(), device.memory_bytes_per_s)
        if min(rates) < 0 or (device.free_memory_bytes or 0) < 0:
            raise ValueError(f"{device.pnode} has a figure below 0")
    for link in facts.links:
        if link.bytes_per_s <= 0 or link.round_trip_ms < 0:
            raise ValueError(f"the link {link.source} to {link.target} has a figure that no link has")
    return facts
