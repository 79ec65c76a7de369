"""This machine's PNodes share its cores and memory, within what their owner allows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dcnr_app.cluster.devices import ASSUMED_FLOPS, DeviceFacts
from dcnr_app.cluster.local_cluster import worker_ids
from dcnr_app.cluster.local_facts import Device, device_facts, local_facts, told_facts
from dcnr_app.engine.device import device_summary
from dcnr_app.engine.measure import Measurement, MemoryNow
from dcnr_app.errors import InvalidError
from dcnr_app.ids import PNodeId
from dcnr_app.limits import Limits

MEASURED = Measurement(
    device_class="known", threads=1, gemm_flops={"float32": 6e9}, memory_bytes_per_s=2e9, wall_ms=77
)


@pytest.mark.parametrize("n_workers", [1, 2, 64])
def test_all_workers_together_are_as_fast_as_the_cores_that_are_allowed(
    tmp_path: Path, n_workers: int
) -> None:
    for cores in (None, 1):
        facts = local_facts(worker_ids(n_workers), tmp_path, "unknown", Limits(cores=cores))
        n_cores = cores or device_summary().n_cores
        together = sum(device.flops_per_s("float32") for device in facts.devices)
        assert together <= ASSUMED_FLOPS * n_cores * 1.001
        assert all(device.cores == max(1, n_cores // n_workers) for device in facts.devices)
        assert {device.measured_ms for device in facts.devices} == {0}


def test_a_kept_measurement_is_used(tmp_path: Path) -> None:
    (tmp_path / "device-known-1.json").write_bytes(msgspec.json.encode(MEASURED))
    (found,) = local_facts((PNodeId("x"),), tmp_path, "known", Limits(cores=1)).devices
    assert (found.flops_per_s("float32"), found.row_bytes_per_s, found.measured_ms) == (6e9, 2e9, 77)


def test_facts_carry_the_measurement_and_the_memory_that_is_allowed() -> None:
    memory = MemoryNow(free_bytes=1000, total_bytes=4000)
    found = device_facts(PNodeId("x"), Device("m"), MEASURED, memory, Limits(memory_bytes=300))
    assert (found.free_memory_bytes, found.total_memory_bytes, found.machine) == (300, 4000, "m")
    assert found.gemm_flops == {"float32": 6e9}
    assert found.device_class == "known"


def test_facts_told_as_plain_data_come_back_and_nonsense_is_refused() -> None:
    memory = MemoryNow(free_bytes=1000, total_bytes=4000)
    known = device_facts(PNodeId("x"), Device("m"), MEASURED, memory, Limits())
    assert told_facts([msgspec.to_builtins(known)]).devices == (known,)
    assert told_facts([{"pnode": "y"}]).devices == (DeviceFacts(pnode=PNodeId("y")),)
    for nonsense in ({"pnode": 5}, {"pnode": "y", "free_memory_bytes": -1}, {}):
        with pytest.raises(InvalidError, match="cannot be read"):
            told_facts([nonsense])
