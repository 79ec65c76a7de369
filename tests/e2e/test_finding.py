"""Machines that find each other over real networks: several cards, VPNs, moved addresses, dead multicast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.announced import own_world
from tests.e2e.lan import Lan, announcing, lan

pytestmark = pytest.mark.e2e


@pytest.fixture
def network() -> Iterator[Lan]:
    """A switch of its own for each test."""
    with lan() as made:
        yield made


def test_two_machines_find_each_other_within_three_seconds_past_docker_and_a_vpn(network: Lan) -> None:
    a, b = network.machine("10.55.0.1"), network.machine("10.55.0.2")
    for machine, number in ((a, 1), (b, 2)):
        machine.ip("link", "add", "docker0", "type", "bridge")
        machine.ip("link", "set", "docker0", "up")
        machine.ip("address", "add", "172.17.0.1/16", "dev", "docker0")
        network.plug(machine, "tailscale0")
        machine.ip("address", "add", f"100.101.0.{number}/32", "dev", "tailscale0")
    first = network.announcer(a, "a")
    first.until(lambda said: True, 10.0)
    second = network.announcer(b, "b")
    started = second.until(lambda said: True, 10.0)
    for watching, other, address in ((first, "b", "10.55.0.2"), (second, "a", "10.55.0.1")):
        seen_s = watching.until(lambda said: any(s["state"] == "live" for s in said["seen"]), 10.0)
        assert seen_s - started < 3.0
        watching.until(lambda said: bool(said["seen"][0]["reached"]), 5.0)
        seen = watching.sees(other)
        assert (seen["addresses"][0], seen["reached"]) == (address, address)
        assert "172.17.0.1" not in seen["addresses"]
        assert any(other.startswith("100.101.") for other in seen["addresses"])


def test_a_machine_with_two_networks_sees_the_machines_on_both(network: Lan) -> None:
    with lan() as other_network:
        a = network.machine("10.55.0.1")
        other_network.plug(a, "eth1", "10.66.0.1")
        b, c = network.machine("10.55.0.2"), other_network.machine("10.66.0.2")
        other_network.service_type = network.service_type
        middle = network.announcer(a, "a")
        network.announcer(b, "b")
        other_network.announcer(c, "c")
        assert middle.sees("b")["addresses"][0] == "10.55.0.2"
        assert middle.sees("c")["addresses"][0] == "10.66.0.2"


def test_a_moved_address_is_known_to_others_within_five_seconds(network: Lan) -> None:
    a, b = network.machine("10.55.0.1"), network.machine("10.55.0.2")
    watching = network.announcer(a, "a")
    network.announcer(b, "b")
    watching.sees("b")
    b.ip("address", "delete", "10.55.0.2/24", "dev", "eth0")
    b.ip("address", "add", "10.55.0.77/24", "dev", "eth0")
    moved = time.monotonic()
    known = watching.until(lambda said: said["seen"][0]["addresses"][:1] == ["10.55.0.77"], 10.0)
    assert known - moved < 5.0


def test_a_network_that_comes_later_is_used(network: Lan) -> None:
    a, b = network.machine(), network.machine("10.55.0.2")
    a.ip("link", "set", "eth0", "down")
    watching = network.announcer(a, "a")
    network.announcer(b, "b")
    watching.until(lambda said: said["silence"] == "no-interface", 10.0)
    a.ip("link", "set", "eth0", "up")
    a.ip("address", "add", "10.55.0.1/24", "dev", "eth0")
    watching.sees("b")


def test_a_card_that_is_pulled_out_leaves_the_other_one_working(network: Lan) -> None:
    a, b = network.machine("10.55.0.1"), network.machine("10.55.0.2")
    network.plug(a, "eth1", "10.66.0.1")
    watching = network.announcer(a, "a")
    network.announcer(b, "b")
    watching.sees("b")
    watching.until(lambda said: "10.66.0.1" in said["announced"], 5.0)
    a.ip("link", "delete", "eth1")
    watching.until(lambda said: "10.66.0.1" not in said["announced"], 5.0)
    late = network.machine("10.55.0.3")
    network.announcer(late, "c")
    watching.sees("c")
    assert watching.sees("b")["state"] == "live"


def test_without_multicast_the_reason_is_named_and_an_address_is_enough(network: Lan) -> None:
    a, b = network.machine("10.55.0.1"), network.machine("10.55.0.2")
    for machine in (a, b):
        network.block_multicast(machine)
    deaf = network.announcer(a, "a")
    network.announcer(b, "b")
    deaf.until(lambda said: said["silence"] == "nobody", 15.0)
    assert deaf.last["seen"] == []
    deaf.end()
    started = time.monotonic()
    knowing = network.announcer(a, "a", ask=["10.55.0.2"])
    knowing.until(lambda said: bool(said["seen"]) and bool(said["seen"][0]["reached"]), 10.0)
    assert knowing.sees("b")["reached"] == "10.55.0.2"
    assert time.monotonic() - started < 10.0


def test_multicast_in_one_direction_only_still_lets_both_see_each_other(network: Lan) -> None:
    a, b = network.machine("10.55.0.1"), network.machine("10.55.0.2")
    network.block_multicast(a)
    deaf = network.announcer(a, "a", ask=["10.55.0.2"])
    other = network.announcer(b, "b")
    assert other.sees("a")["state"] == "live"
    assert deaf.sees("b")["state"] == "live"


def test_doctor_fails_on_a_machine_without_a_network_and_passes_once_it_has_one(
    network: Lan, tmp_path: Path
) -> None:
    machine = network.machine()
    machine.ip("link", "set", "eth0", "down")

    def doctor() -> tuple[int, dict[str, str]]:
        done = subprocess.run(
            [*machine.prefix, sys.executable, "-m", "dcnr_app", "doctor", "--json"],
            env={**os.environ, "DCNR_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=30,
        )
        return done.returncode, {f["check"]: f["verdict"] for f in json.loads(done.stdout)["findings"]}

    code, verdicts = doctor()
    assert (code, verdicts["interfaces"], verdicts["multicast"]) == (1, "fail", "warn")
    machine.ip("link", "set", "eth0", "up")
    machine.ip("address", "add", "10.55.0.1/24", "dev", "eth0")
    code, verdicts = doctor()
    assert (code, verdicts["interfaces"], verdicts["multicast"]) == (0, "ok", "ok")


def test_a_killed_machine_leaves_the_counts_within_fifteen_seconds_and_ten_restarts_leave_one_entry() -> None:
    world = own_world()
    with announcing(world, "a", is_loopback=True) as watching:
        ids = set()
        for _ in range(10):
            with announcing(world, "b", is_loopback=True) as restarted:
                restarted.sees("a")
                ids.add(watching.sees("b")["machine"])
                restarted.kill()
                killed = time.monotonic()
        gone = watching.until(lambda said: [s["state"] for s in said["seen"]] == ["offline"], 20.0)
        assert gone - killed <= 15.0
        assert len(ids) == 1
        assert watching.last["seen"][0]["is_duplicate"] is False
