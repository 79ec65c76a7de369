"""The same losses, bit for bit, on any number of worker processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.place import PER_HEAD, Place, check_series, network_text

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def trained(place: Place, workers: int, *, steps: int = 30, network: str = "") -> dict[str, Any]:
    done = place.run(*place.demo(workers=workers, steps=steps, network=network), "--json")
    assert (done.code, done.stderr) == (0, "")
    result: dict[str, Any] = done.result
    return result


def check_workers(result: dict[str, Any], n_workers: int) -> None:
    """Every worker is a process of its own with parameters, and speaks if it has anybody to speak to."""
    workers = [entry for entry in result["pnodes"] if entry["role"] == "worker"]
    assert len({entry["pid"] for entry in result["pnodes"]}) == n_workers + 1
    assert [entry["pnode"] for entry in workers] == [f"worker-{i + 1}" for i in range(n_workers)]
    assert all(entry["vnodes"] and entry["parameters"] > 0 for entry in workers)
    assert all(entry["bytes_sent"] > 0 and entry["bytes_received"] > 0 for entry in result["pnodes"])
    (orchestrator,) = (entry for entry in result["pnodes"] if entry["role"] == "orchestrator")
    assert (orchestrator["vnodes"], orchestrator["parameters"]) == ([], 0)


def heads_of_layer_0(result: dict[str, Any]) -> set[int]:
    """Pids that hold attention heads of the first layer."""
    return {
        entry["pid"]
        for entry in result["pnodes"]
        if any(name.startswith("block/0/heads/") for name in entry["vnodes"])
    }


def test_losses_are_equal_bit_for_bit_on_0_to_3_workers(prepared: Place, place: Place) -> None:
    alone = trained(place, 0)
    check_series(alone["losses"], 30)
    assert [step for step, _ in alone["validation"]] == [10, 20, 30]
    (only,) = alone["pnodes"]
    assert only["role"] == "orchestrator"
    assert only["parameters"] > 0
    for n_workers in (1, 2, 3):
        spread = trained(place, n_workers)
        check_workers(spread, n_workers)
        assert (spread["losses"], spread["validation"]) == (alone["losses"], alone["validation"])
        assert spread["sample"] == alone["sample"]
        assert spread["max_in_flight"] >= min(2, n_workers)


def test_losses_are_equal_bit_for_bit_with_the_heads_of_one_layer_on_several_processes(place: Place) -> None:
    place.network.write_text(network_text(PER_HEAD))
    alone = trained(place, 0)
    check_series(alone["losses"], 30)
    for n_workers in (2, 3):
        spread = trained(place, n_workers)
        check_workers(spread, n_workers)
        assert len(heads_of_layer_0(spread)) >= 2
        assert (spread["losses"], spread["validation"]) == (alone["losses"], alone["validation"])


@pytest.mark.slow
@pytest.mark.parametrize("network", ["tiny-gpt", "tiny-gpt-per-head"])
def test_bundled_networks_give_equal_losses_on_0_and_2_workers(place: Place, network: str) -> None:
    alone, spread = (trained(place, n_workers, steps=4, network=network) for n_workers in (0, 2))
    check_series(alone["losses"], 4)
    check_workers(spread, 2)
    assert spread["losses"] == alone["losses"]
    if network == "tiny-gpt-per-head":
        assert len(heads_of_layer_0(spread)) == 2
