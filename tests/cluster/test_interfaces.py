"""Which interfaces are used, which addresses are announced, in which order a peer's are tried."""

from __future__ import annotations

import socket

import psutil
import pytest

from dcnr_app.cluster.addresses import (
    Interface,
    announced_addresses,
    classify,
    dialled_addresses,
    is_usable,
    multicast_targets,
    on_link,
)
from dcnr_app.cluster.interfaces import all_interfaces, usable_interfaces

ETHERNET = Interface(
    name="eth0", index=2, kind="wired", networks=("192.168.1.5/24", "fe80::1%eth0/64", "2001:db8::5/64")
)
WIFI = Interface(name="wlan0", index=3, kind="wifi", networks=("192.168.7.5/24",))
TAILSCALE = Interface(name="tailscale0", index=4, kind="vpn", networks=("100.101.1.2/32",))
DOCKER = Interface(name="docker0", index=5, kind="container", networks=("172.17.0.1/16",))
LOOPBACK = Interface(name="lo", index=1, kind="loopback", networks=("127.0.0.1/8", "::1/128"))
ALL = (WIFI, TAILSCALE, DOCKER, LOOPBACK, ETHERNET)


@pytest.mark.parametrize(
    ("name", "addresses", "kind"),
    [
        ("eth0", ["192.168.1.5"], "wired"),
        ("enp3s0", ["10.0.0.5"], "wired"),
        ("en0", ["10.0.0.5"], "wired"),
        ("Ethernet 2", ["10.0.0.5"], "wired"),
        ("bridge0", ["169.254.3.4"], "wired"),  # Thunderbolt on macOS
        ("wlan0", ["10.0.0.5"], "wifi"),
        ("wlp2s0", ["10.0.0.5"], "wifi"),
        ("Wi-Fi", ["10.0.0.5"], "wifi"),
        ("tun0", ["10.8.0.2"], "vpn"),
        ("wg0", ["10.8.0.2"], "vpn"),
        ("utun4", ["10.8.0.2"], "vpn"),
        ("tailscale0", ["100.100.1.1"], "vpn"),
        ("zt5u4y6ejv", ["10.147.1.1"], "vpn"),
        ("eth1", ["100.64.0.1"], "vpn"),
        ("eth1", ["100.127.255.255"], "vpn"),
        ("eth1", ["100.128.0.1"], "wired"),
        ("eth1", ["fd7a:115c:a1e0::1"], "vpn"),
        ("docker0", ["172.17.0.1"], "container"),
        ("br-4f2a", ["172.18.0.1"], "container"),
        ("veth12", ["fe80::1%veth12"], "container"),
        ("virbr0", ["192.168.122.1"], "container"),
        ("cni0", ["10.42.0.1"], "container"),
        ("bridge100", ["192.168.64.1"], "container"),
        ("awdl0", ["fe80::1%awdl0"], "container"),
        ("llw0", ["fe80::1%llw0"], "container"),
        ("vEthernet (WSL)", ["172.30.0.1"], "container"),
        ("lo", ["127.0.0.1"], "loopback"),
        ("lo0", ["127.0.0.1", "fe80::1%lo0"], "loopback"),
        ("Loopback Pseudo-Interface 1", ["127.0.0.1"], "loopback"),
    ],
)
def test_interfaces_are_told_apart_by_name_and_address(name: str, addresses: list[str], kind: str) -> None:
    assert classify(name, addresses) == kind


def test_an_interface_that_the_system_calls_wireless_is_wifi() -> None:
    assert classify("eth0", ["10.0.0.5"], is_wireless=True) == "wifi"


def test_container_bridges_and_loopback_are_not_used() -> None:
    assert [i.name for i in ALL if is_usable(i)] == ["wlan0", "tailscale0", "eth0"]


def test_loopback_is_used_only_if_told() -> None:
    assert is_usable(LOOPBACK, with_loopback=True)


def test_a_tunnel_with_nothing_but_a_link_local_address_is_not_used() -> None:
    tunnel = Interface(name="utun0", index=9, kind="vpn", networks=("fe80::7%utun0/64",))
    assert not is_usable(tunnel)


def test_a_direct_cable_with_link_local_addresses_only_is_used() -> None:
    assert is_usable(Interface(name="en5", index=9, kind="wired", networks=("169.254.9.9/16",)))


def test_all_addresses_are_announced_lan_before_vpn_and_none_of_loopback() -> None:
    announced = announced_addresses((TAILSCALE, WIFI, LOOPBACK, ETHERNET))
    assert announced == ("192.168.1.5", "2001:db8::5", "fe80::1", "192.168.7.5", "100.101.1.2")


def test_the_address_on_a_shared_lan_is_dialled_first_with_docker_and_vpn_up() -> None:
    theirs = ["172.17.0.1", "100.101.7.7", "10.9.9.9", "192.168.7.6", "192.168.1.6"]
    assert dialled_addresses(theirs, ALL) == (
        "192.168.1.6",
        "192.168.7.6",
        "10.9.9.9",
        "100.101.7.7",
        "172.17.0.1",
    )


def test_ipv4_is_dialled_before_ipv6_of_the_same_network() -> None:
    assert dialled_addresses(["2001:db8::6", "192.168.1.6"], ALL) == ("192.168.1.6", "2001:db8::6")


def test_a_link_local_ipv6_address_is_dialled_only_with_its_scope() -> None:
    assert dialled_addresses(["fe80::9", "fe80::9%eth0"], ALL) == ("fe80::9%eth0",)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.251", "ff02::1", "nonsense", "", "1.2.3.4/8"],  # noqa: S104
)
def test_what_cannot_be_another_machine_is_not_dialled(address: str) -> None:
    assert dialled_addresses([address], ALL) == ()


def test_no_more_than_sixteen_addresses_of_one_machine_are_dialled() -> None:
    assert len(dialled_addresses([f"10.0.0.{i}" for i in range(200)], ALL)) == 16


def test_on_link_means_in_the_network_of_an_interface() -> None:
    assert on_link("192.168.1.77", ALL) is ETHERNET
    assert on_link("fe80::77%2", ALL) is ETHERNET
    assert on_link("fe80::77%9", ALL) is None
    assert on_link("8.8.8.8", ALL) is None
    assert on_link("nonsense", ALL) is None


def test_multicast_uses_one_address_per_family_and_interface_and_link_local_ipv6() -> None:
    assert multicast_targets((ETHERNET, WIFI)) == ("192.168.1.5", "fe80::1%eth0", "192.168.7.5")


def test_this_machines_interfaces_hold_every_ipv4_address_that_the_system_lists() -> None:
    stats = psutil.net_if_stats()
    listed = {
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family == socket.AF_INET and stats[name].isup
    }
    assert listed == {a for i in all_interfaces() for a in i.addresses if ":" not in a}


def test_this_machines_loopback_is_on_link_and_not_usable() -> None:
    interfaces = all_interfaces()
    loopback = on_link("127.0.0.1", interfaces)
    assert loopback is not None
    assert loopback.kind == "loopback"
    assert loopback not in usable_interfaces()
    assert loopback in usable_interfaces(with_loopback=True)
