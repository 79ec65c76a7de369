"""What a healthy machine looks like: judges facts that were probed, and names one fix each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_interface
from typing import Final, Literal

import msgspec

from dcnr_app.cluster.addresses import Interface, is_usable

Verdict = Literal["ok", "warn", "fail"]

MINIMUM_PYTHON: Final = (3, 11)
FAIL_BYTES, WARN_BYTES = 100_000_000, 2_000_000_000
"""Free space under which nothing can be kept, and under which checkpoints soon will not fit."""
WARN_MEMORY_BYTES: Final = 1_000_000_000
WARN_DRIFT_MS, WARN_FILE_SKEW_MS = 100.0, 5_000.0
_FIRST_WALL_MS, _LAST_WALL_MS = 1_735_689_600_000, 2_493_072_000_000  # 2025 to 2049
_MACOS_LOCAL_NETWORK: Final = (
    "open 'x-apple.systempreferences:com.apple.preference.security?Privacy_LocalNetwork'"
)

_CLOCK_COMMANDS: Final[Mapping[str, str]] = {
    "darwin": "sudo sntp -sS time.apple.com",
    "win32": "w32tm /resync",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check: what was found, and unless all is well why it matters and the one command that helps."""

    check: str
    verdict: Verdict
    what: str
    why: str = ""
    fix: str = ""


class PortFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Whether UDP port 5353 can be shared and a TCP port bound: an empty text, or the system's reason.
    `holders` are programs on UDP 5353, as far as the system tells."""

    multicast_error: str
    listening_error: str
    holders: tuple[str, ...] = ()


class ClockFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The wall clock, how far it and the monotonic clock drifted apart during the probe, and how far a file's
    time written just now is from it."""

    wall_ms: int
    drift_ms: float
    file_skew_ms: float | None


class DiskFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Where this app keeps its files: the folder, whether it can be written to (an empty text, or why not)
    and how much is free."""

    folder: str
    write_error: str
    free_bytes: int


class VersionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """This Python, and of each library that is needed its version (None where it is not installed) and the
    lowest that will do."""

    app: str
    python: tuple[int, int]
    libraries: Mapping[str, tuple[str | None, str]]


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The processor that would compute: `error` is empty, or why it cannot be used."""

    name: str
    device_class: str
    n_cores: int
    memory_bytes: int
    free_memory_bytes: int
    error: str = ""


def judge_interfaces(interfaces: Sequence[Interface]) -> Finding:
    """Which interfaces are used, and why the others are not."""
    used = [i for i in interfaces if is_usable(i)]
    told = "; ".join(
        f"{i.name} ({i.kind}) {', '.join(i.addresses) if i in used else _skipped(i)}" for i in interfaces
    )
    if not used:
        return Finding(
            check="interfaces",
            verdict="fail",
            what=f"no usable network interface: {told or 'none is up'}",
            why="connect this machine by cable or Wi-Fi to work with others; training on it alone works",
            fix="dcnr-app doctor",
        )
    if all(i.kind == "vpn" for i in used):
        return Finding(
            check="interfaces",
            verdict="warn",
            what=f"only a VPN is up: {told}",
            why="a VPN carries no multicast: machines do not find each other by themselves there",
            fix="dcnr-app join HOST",
        )
    return Finding(check="interfaces", verdict="ok", what=told)


def judge_multicast(echoes: Mapping[str, str], system: str) -> Finding:
    """Whether a packet that was multicast came back, by interface: an empty text, or why not. `system` is
    sys.platform."""
    deaf = {name: why for name, why in echoes.items() if why}
    if not echoes:
        return Finding(
            check="multicast", verdict="warn", what="not tried", why="there is no usable network interface"
        )
    if not deaf:
        return Finding(check="multicast", verdict="ok", what=f"heard its own packet on {', '.join(echoes)}")
    told = "; ".join(f"{name}: {why}" for name, why in deaf.items())
    return Finding(
        check="multicast",
        verdict="warn" if len(deaf) < len(echoes) else "fail",
        what=f"no echo of its own packet on {', '.join(deaf)}",
        why=f"{told}. Machines do not find each other there by themselves",
        fix=_MACOS_LOCAL_NETWORK if system == "darwin" else "dcnr-app join HOST",
    )


def judge_ports(facts: PortFacts, system: str) -> Finding:
    """Whether the ports that are needed can be had."""
    if facts.listening_error:
        return Finding(
            check="ports",
            verdict="fail",
            what="no TCP port can be listened on",
            why=f"{facts.listening_error}; other machines could not reach this one. A sandbox or container "
            "may forbid it: try outside of it",
            fix="dcnr-app doctor",
        )
    if facts.multicast_error:
        held = f", held by {', '.join(facts.holders)}" if facts.holders else ""
        shown = "Get-NetUDPEndpoint -LocalPort 5353" if system == "win32" else "sudo lsof -nP -iUDP:5353"
        return Finding(
            check="ports",
            verdict="warn",
            what=f"UDP port 5353 cannot be shared{held}",
            why=f"{facts.multicast_error}; machines do not find each other by themselves. The command shows "
            "who holds it: end that program, or let it share the port",
            fix=shown,
        )
    shared = f" (also used by {', '.join(facts.holders)})" if facts.holders else ""
    return Finding(check="ports", verdict="ok", what=f"UDP 5353{shared} and TCP can be used")


def judge_clock(facts: ClockFacts, system: str) -> Finding:
    """Whether the clocks are sane. Nothing depends on the date, so this never fails."""
    troubles = []
    if not _FIRST_WALL_MS <= facts.wall_ms <= _LAST_WALL_MS:
        troubles.append("the date is wrong")
    if abs(facts.drift_ms) > WARN_DRIFT_MS:
        troubles.append(f"the clock was stepped by {facts.drift_ms:.0f} ms while it was watched")
    if facts.file_skew_ms is not None and abs(facts.file_skew_ms) > WARN_FILE_SKEW_MS:
        troubles.append(f"files are stamped {facts.file_skew_ms / 1000.0:.0f} s off the clock")
    if not troubles:
        return Finding(check="clock", verdict="ok", what="steady")
    return Finding(
        check="clock",
        verdict="warn",
        what="; ".join(troubles),
        why="times that are shown will be wrong; training and joining do not depend on them",
        fix=_CLOCK_COMMANDS.get(system, "sudo timedatectl set-ntp true"),
    )


def judge_disk(facts: DiskFacts) -> Finding:
    """Whether the home can be written to and has room."""
    free = f"{facts.free_bytes / 1e9:.1f} GB free in {facts.folder}"
    if facts.write_error:
        return Finding(
            check="disk",
            verdict="fail",
            what=f"{facts.folder} cannot be written to",
            why=facts.write_error,
            fix="DCNR_HOME=~/dcnr dcnr-app doctor",
        )
    if facts.free_bytes < WARN_BYTES:
        return Finding(
            check="disk",
            verdict="fail" if facts.free_bytes < FAIL_BYTES else "warn",
            what=free,
            why="checkpoints and snapshots will not fit; `checkpoint rm` removes those that you do not need",
            fix="dcnr-app checkpoint ls",
        )
    return Finding(check="disk", verdict="ok", what=free)


def judge_versions(facts: VersionFacts) -> Finding:
    """Whether Python and the libraries are there and new enough."""
    python = ".".join(map(str, facts.python))
    if facts.python < MINIMUM_PYTHON:
        wanted = ".".join(map(str, MINIMUM_PYTHON))
        return Finding(
            check="versions",
            verdict="fail",
            what=f"Python {python}",
            why=f"dcnr-app needs {wanted} or newer",
            fix=f"python{wanted} -m pip install dcnr-app",
        )
    wrong = {
        name: (found, least)
        for name, (found, least) in facts.libraries.items()
        if found is None or _numbers(found) < _numbers(least)
    }
    if wrong:
        needed = " ".join(f"'{name}>={least}'" for name, (_, least) in wrong.items())
        return Finding(
            check="versions",
            verdict="fail",
            what="; ".join(
                f"{name} {found} is too old" if found else f"{name} is not installed"
                for name, (found, _) in wrong.items()
            ),
            why="dcnr-app was tested with newer ones; older ones have known faults",
            fix=f"python -m pip install {needed}",
        )
    return Finding(
        check="versions",
        verdict="ok",
        what=f"dcnr-app {facts.app}, Python {python}, {len(facts.libraries)} libraries",
    )


def judge_devices(facts: DeviceFacts, system: str) -> Finding:
    """Whether there is something to compute with."""
    if facts.error:
        return Finding(
            check="devices",
            verdict="fail",
            what="no device can be used",
            why=facts.error,
            fix="python -m pip install --force-reinstall numpy",
        )
    what = (
        f"{facts.name}, {facts.n_cores} cores, {facts.free_memory_bytes / 1e9:.1f} of "
        f"{facts.memory_bytes / 1e9:.1f} GB memory free, device class {facts.device_class}"
    )
    if facts.free_memory_bytes < WARN_MEMORY_BYTES:
        return Finding(
            check="devices",
            verdict="warn",
            what=what,
            why="little memory is free: only small networks fit. End programs that hold much of it",
            fix="tasklist /v" if system == "win32" else "ps -axo rss,pid,comm | sort -rn | head",
        )
    return Finding(check="devices", verdict="ok", what=what)


def lan_networks(interfaces: Sequence[Interface]) -> tuple[str, ...]:
    """The IPv4 networks of the usable interfaces, best first, as in `192.168.1.0/24`: what a firewall must
    let in."""
    used = [ip_interface(network) for i in interfaces if is_usable(i) for network in i.networks]
    return tuple(dict.fromkeys(str(i.network) for i in used if i.version == 4 and not i.is_link_local))


def _skipped(interface: Interface) -> str:
    reasons = {
        "container": "skipped: containers and virtual machines only",
        "loopback": "skipped: leads to this machine only",
        "vpn": "skipped: nothing but a link-local address",
    }
    return reasons.get(interface.kind, "skipped: no address")


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, as in (0, 150) of `0.150rc1`."""
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
