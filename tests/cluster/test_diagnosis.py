"""The judgements of `doctor`, on facts that are made up; and its probes, on this machine."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dcnr_app.cluster.addresses import Interface
from dcnr_app.cluster.diagnosis import (
    FAIL_BYTES,
    WARN_BYTES,
    ClockFacts,
    DeviceFacts,
    DiskFacts,
    Finding,
    PortFacts,
    VersionFacts,
    judge_clock,
    judge_devices,
    judge_disk,
    judge_interfaces,
    judge_multicast,
    judge_ports,
    judge_versions,
    lan_networks,
)
from dcnr_app.cluster.diagnosis_probes import (
    output_of,
    probe_clock,
    probe_devices,
    probe_disk,
    probe_multicast,
    probe_ports,
    probe_versions,
)
from dcnr_app.cluster.diagnosis_run import diagnose
from dcnr_app.cluster.interfaces import all_interfaces

LAN = Interface(name="eth0", index=2, kind="wired", networks=("192.168.1.5/24", "fe80::1%eth0/64"))
VPN = Interface(name="tailscale0", index=3, kind="vpn", networks=("100.64.1.1/32",))
DOCKER = Interface(name="docker0", index=4, kind="container", networks=("172.17.0.1/16",))
LOOPBACK = Interface(name="lo", index=1, kind="loopback", networks=("127.0.0.1/8",))

NOW_MS = 1_796_000_000_000
CLOCK = ClockFacts(wall_ms=NOW_MS, drift_ms=0.1, file_skew_ms=3.0)
DISK = DiskFacts(folder="/home/me/dcnr", write_error="", free_bytes=50_000_000_000)
PORTS = PortFacts(multicast_error="", listening_error="")
VERSIONS = VersionFacts(app="0.1.0", python=(3, 12), libraries={"zeroconf": ("0.154.0", "0.150")})
DEVICE = DeviceFacts(
    name="M4", device_class="abc", n_cores=8, memory_bytes=16_000_000_000, free_memory_bytes=9_000_000_000
)


def changed(facts: Any, **changes: Any) -> Any:
    """The same facts but for these."""
    return msgspec.structs.replace(facts, **changes)


HEALTHY = [
    judge_interfaces([LAN, VPN, DOCKER, LOOPBACK]),
    judge_multicast({"eth0": ""}, "linux"),
    judge_ports(PORTS, "linux"),
    judge_clock(CLOCK, "linux"),
    judge_disk(DISK),
    judge_versions(VERSIONS),
    judge_devices(DEVICE, "linux"),
]
AILING = {
    "no network": (judge_interfaces([DOCKER, LOOPBACK]), "fail", "no usable network interface"),
    "nothing up": (judge_interfaces([]), "fail", "none is up"),
    "only a VPN": (judge_interfaces([VPN, LOOPBACK]), "warn", "only a VPN is up"),
    "deaf": (judge_multicast({"eth0": "nothing came back"}, "linux"), "fail", "no echo"),
    "deaf on one": (
        judge_multicast({"eth0": "", "eth1": "nothing"}, "linux"),
        "warn",
        "no echo of its own packet on eth1",
    ),
    "no TCP": (
        judge_ports(changed(PORTS, listening_error="Permission denied"), "linux"),
        "fail",
        "no TCP port",
    ),
    "5353 held": (
        judge_ports(
            changed(PORTS, multicast_error="Address already in use", holders=("x (process 7)",)), "linux"
        ),
        "warn",
        "held by x (process 7)",
    ),
    "1970": (judge_clock(changed(CLOCK, wall_ms=5), "linux"), "warn", "the date is wrong"),
    "far future": (judge_clock(changed(CLOCK, wall_ms=NOW_MS * 2), "linux"), "warn", "the date is wrong"),
    "stepped": (judge_clock(changed(CLOCK, drift_ms=-3_600_000.0), "linux"), "warn", "was stepped"),
    "file server's clock": (judge_clock(changed(CLOCK, file_skew_ms=60_000.0), "linux"), "warn", "60 s off"),
    "read-only": (
        judge_disk(changed(DISK, write_error="Read-only file system")),
        "fail",
        "cannot be written",
    ),
    "full": (judge_disk(changed(DISK, free_bytes=FAIL_BYTES - 1)), "fail", "0.1 GB free"),
    "nearly full": (judge_disk(changed(DISK, free_bytes=WARN_BYTES - 1)), "warn", "2.0 GB free"),
    "old Python": (judge_versions(changed(VERSIONS, python=(3, 10))), "fail", "Python 3.10"),
    "old library": (
        judge_versions(changed(VERSIONS, libraries={"zeroconf": ("0.148.0", "0.150")})),
        "fail",
        "zeroconf 0.148.0 is too old",
    ),
    "missing library": (
        judge_versions(changed(VERSIONS, libraries={"grpcio": (None, "1.66")})),
        "fail",
        "grpcio is not installed",
    ),
    "broken BLAS": (judge_devices(changed(DEVICE, error="no BLAS"), "linux"), "fail", "no device"),
    "no memory": (judge_devices(changed(DEVICE, free_memory_bytes=9_999), "linux"), "warn", "0.0 of 16.0 GB"),
}


@pytest.mark.parametrize("finding", HEALTHY, ids=lambda finding: finding.check)
def test_a_healthy_machine_has_no_complaint(finding: Finding) -> None:
    assert (finding.verdict, finding.why, finding.fix) == ("ok", "", "")


@pytest.mark.parametrize(("finding", "verdict", "what"), AILING.values(), ids=AILING)
def test_each_ailment_is_told_with_why_and_one_command(finding: Finding, verdict: str, what: str) -> None:
    assert finding.verdict == verdict
    assert what in finding.what
    assert finding.why
    assert finding.fix
    assert "\n" not in finding.fix
    assert finding.fix.split()[0].strip("'\"") in {
        "dcnr-app", "sudo", "python", "python3.11", "ps", "DCNR_HOME=~/dcnr",
    }  # fmt: skip


def test_skipped_interfaces_are_listed_with_the_reason() -> None:
    told = judge_interfaces([LAN, DOCKER, LOOPBACK]).what
    assert "eth0 (wired) 192.168.1.5, fe80::1%eth0" in told
    assert "docker0 (container) skipped: containers" in told
    assert "lo (loopback) skipped" in told


def test_a_denied_local_network_on_macos_leads_to_the_permission() -> None:
    found = judge_multicast({"en0": "No route to host"}, "darwin")
    assert "Privacy_LocalNetwork" in found.fix


@pytest.mark.parametrize(("found", "least"), [("0.150.0", "0.150"), ("0.150rc1", "0.150"), ("1.0", "0.999")])
def test_a_version_that_is_new_enough_is_accepted(found: str, least: str) -> None:
    assert judge_versions(changed(VERSIONS, libraries={"x": (found, least)})).verdict == "ok"


def test_the_worst_of_clocks_is_no_failure() -> None:
    assert judge_clock(ClockFacts(wall_ms=0, drift_ms=9e9, file_skew_ms=None), "win32").verdict == "warn"


def test_the_networks_that_a_firewall_must_admit_are_those_of_the_usable_interfaces() -> None:
    assert lan_networks([DOCKER, LAN, VPN, LOOPBACK]) == ("192.168.1.0/24", "100.64.1.1/32")


def test_this_machine_hears_its_own_packet_on_loopback() -> None:
    loopback = [i for i in all_interfaces() if i.kind == "loopback" and "127.0.0.1" in i.addresses]
    assert list(probe_multicast(loopback).values()) == [""]


def test_an_interface_whose_address_is_gone_is_deaf_with_the_systems_reason() -> None:
    gone = Interface(name="eth9", index=99, kind="wired", networks=("203.0.113.77/24",))
    assert probe_multicast([gone])["eth9"]


def test_a_port_that_another_program_holds_alone_is_told() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        try:
            holder.bind(("", 5353))
        except OSError:
            pytest.skip("another program holds UDP 5353 already")
        facts = probe_ports()
    assert facts.multicast_error
    assert facts.listening_error == ""
    assert any(f"process {os.getpid()}" in name for name in facts.holders)


def test_the_disk_is_probed_without_creating_the_home(tmp_path: Path) -> None:
    home = tmp_path / "not" / "there"
    facts = probe_disk(home)
    assert (facts.write_error, facts.folder) == ("", str(home))
    assert facts.free_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_a_home_below_a_file_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert probe_disk(tmp_path / "file" / "home").write_error == "Not a directory"


def test_the_clock_of_this_machine_is_steady_and_files_are_stamped_by_it(tmp_path: Path) -> None:
    facts = probe_clock(tmp_path)
    assert abs(facts.wall_ms - time.time() * 1000) < 60_000
    assert facts.file_skew_ms is not None
    assert abs(facts.file_skew_ms) < 60_000


def test_the_libraries_that_are_checked_are_those_that_the_package_needs() -> None:
    libraries = probe_versions().libraries
    assert {"zeroconf", "grpcio", "numpy", "cryptography"} <= set(libraries)
    assert libraries["zeroconf"][1] == "0.150"
    assert judge_versions(probe_versions()).verdict == "ok"


def test_the_processor_is_usable() -> None:
    facts = probe_devices()
    assert (facts.error, facts.n_cores >= 1, len(facts.device_class)) == ("", True, 12)


def test_a_program_that_is_not_there_or_hangs_is_no_answer() -> None:
    assert output_of(["no-such-program-at-all"]) is None
    assert output_of(["sleep", "30"], timeout_s=0.05) is None
    assert output_of(["echo", "hi"]) == "hi\n"


def test_all_eight_checks_are_made(tmp_path: Path) -> None:
    assert [finding.check for finding in diagnose(tmp_path)] == [
        "interfaces",
        "multicast",
        "ports",
        "firewall",
        "clock",
        "disk",
        "versions",
        "devices",
    ]
