"""What is not measured is assumed openly, and what is measured in one direction holds for the other."""

from __future__ import annotations

import msgspec

from dcnr_app.cluster.devices import (
    ASSUMED_FLOPS,
    LAN_BYTES_PER_S,
    LOOPBACK_BYTES_PER_S,
    ClusterFacts,
    DeviceFacts,
    LinkFacts,
    equal_facts,
)
from tests.cluster.facts import cluster, device


def test_unmeasured_devices_are_equal_and_without_a_memory_limit() -> None:
    facts = equal_facts(("x", "y"))
    assert [d.flops_per_s("float32") for d in facts.devices] == [ASSUMED_FLOPS] * 2
    assert [d.free_memory_bytes for d in facts.devices] == [None, None]
    assert facts.device("nobody") == DeviceFacts(pnode="nobody")


def test_a_dtype_without_a_figure_takes_the_slowest_one() -> None:
    found = DeviceFacts(pnode="x", gemm_flops={"float32": 3.0, "bfloat16": 9.0})
    assert (found.flops_per_s("bfloat16"), found.flops_per_s("float16")) == (9.0, 3.0)


def test_a_link_is_the_measured_one_else_its_other_direction_else_assumed_by_machine() -> None:
    measured = LinkFacts(source="a", target="b", bytes_per_s=5.0, round_trip_ms=7.0)
    devices = (device("a", machine="m"), device("b", machine="n"), device("c", machine="m"))
    facts = ClusterFacts(devices=devices, links=(measured,))
    assert facts.link("a", "b") == measured
    assert facts.link("b", "a") == LinkFacts(source="b", target="a", bytes_per_s=5.0, round_trip_ms=7.0)
    assert facts.link("a", "c").bytes_per_s == LOOPBACK_BYTES_PER_S
    assert facts.link("b", "c").bytes_per_s == LAN_BYTES_PER_S
    assert facts.link("orchestrator", "c").bytes_per_s == LOOPBACK_BYTES_PER_S


def test_a_part_keeps_its_order_and_its_links() -> None:
    facts = cluster(device("a"), device("b"), device("c"))
    part = facts.only(("c", "a"))
    assert part.pnodes == ("c", "a")
    assert {(link.source, link.target) for link in part.links} == {("a", "c"), ("c", "a")}


def test_facts_come_back_from_json() -> None:
    facts = cluster(device("a"), device("b", free_memory_bytes=None))
    assert msgspec.json.decode(msgspec.json.encode(facts), type=ClusterFacts) == facts
