"""Asks the system what the checks of `dcnr-app doctor` want to know. IO; blocks for a few seconds in all, and
changes nothing but a file that it removes again.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

import psutil

from dcnr_app import __version__
from dcnr_app.cluster.addresses import Interface, multicast_targets
from dcnr_app.cluster.diagnosis import (
    ClockFacts,
    DeviceFacts,
    DiskFacts,
    PortFacts,
    VersionFacts,
)
from dcnr_app.engine.device import device_class, device_summary, reference_facts

_GROUP: Final = "224.0.0.251"
_PORT: Final = 5353
_ECHO_S: Final = 1.0
_WATCH_S: Final = 0.2
_NEEDED: Final = re.compile(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9.]+)\s*$")


def probe_multicast(interfaces: Sequence[Interface]) -> dict[str, str]:
    """Of each interface with an IPv4 address: an empty text if a packet multicast on it came back, else why
    not."""
    found = {}
    for interface in interfaces:
        address = next((a for a in multicast_targets([interface]) if ":" not in a), "")
        if address:
            found[interface.name] = _echo(address)
    return found


def probe_ports() -> PortFacts:
    """Whether UDP 5353 can be shared with others, who holds it, and whether a TCP port can be listened on."""
    multicast_error = listening_error = ""
    try:
        _shared_socket().close()
    except OSError as error:
        multicast_error = error.strerror or str(error)
    try:
        with socket.create_server(("", 0)):
            pass
    except OSError as error:
        listening_error = error.strerror or str(error)
    return PortFacts(
        multicast_error=multicast_error, listening_error=listening_error, holders=tuple(_holders())
    )


def probe_clock(folder: Path) -> ClockFacts:
    """Watches both clocks for a moment, and stamps a file in `folder` if that can be written to."""
    wall_s, monotonic_s = time.time(), time.monotonic()
    time.sleep(_WATCH_S)
    drift_s = (time.time() - wall_s) - (time.monotonic() - monotonic_s)
    skew_ms: float | None
    try:
        with tempfile.NamedTemporaryFile(dir=_nearest(folder)) as stamped:
            skew_ms = (os.fstat(stamped.fileno()).st_mtime - time.time()) * 1000.0
    except OSError:
        skew_ms = None  # the check of the disk says why
    return ClockFacts(wall_ms=time.time_ns() // 1_000_000, drift_ms=drift_s * 1000.0, file_skew_ms=skew_ms)


def probe_disk(folder: Path) -> DiskFacts:
    """Writes a file in `folder`, or in the nearest folder above that exists, and removes it."""
    nearest = _nearest(folder)
    write_error = ""
    try:
        with tempfile.NamedTemporaryFile(dir=nearest) as written:
            written.write(b"dcnr-app doctor")
            written.flush()
            os.fsync(written.fileno())
    except OSError as error:
        write_error = error.strerror or str(error)
    try:
        free_bytes = shutil.disk_usage(nearest).free
    except OSError as error:
        write_error, free_bytes = write_error or error.strerror or str(error), 0
    return DiskFacts(folder=str(folder), write_error=write_error, free_bytes=free_bytes)


def probe_versions() -> VersionFacts:
    """The libraries that this app's own metadata names with a lowest version, for this system."""
    needed = {
        found[1]: found[2]
        for text in metadata.requires("dcnr-app") or []
        if (found := _NEEDED.fullmatch(text)) is not None
    }
    return VersionFacts(
        app=__version__,
        python=sys.version_info[:2],
        libraries={name: (_version(name), least) for name, least in needed.items()},
    )


def probe_devices() -> DeviceFacts:
    """The processor, as the engine sees it."""
    summary = device_summary()
    try:
        error, found_class = "", device_class(reference_facts())
    except (OSError, KeyError, ValueError) as failure:  # a BLAS that cannot be asked what it is
        error, found_class = str(failure), ""
    return DeviceFacts(
        name=summary.processor,
        device_class=found_class,
        n_cores=summary.n_cores,
        memory_bytes=summary.memory_bytes,
        free_memory_bytes=summary.free_memory_bytes,
        error=error,
    )


def output_of(command: Sequence[str], timeout_s: float = 5.0) -> str | None:
    """What a program prints on stdout and stderr; None if it is not there, or does not end."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603  # commands of ours, nothing taken from outside
            command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr


def _echo(address: str) -> str:
    """Multicasts a question that nobody answers, and waits for it."""
    # A DNS header with one question: the pointer records of a random name of ours.
    name = f"_{secrets.token_hex(6)}"
    question = b"".join(bytes([len(label)]) + label.encode() for label in (name, "_udp", "local")) + b"\x00"
    packet = struct.pack("!HHHHHH", 0, 0, 1, 0, 0, 0) + question + struct.pack("!HH", 12, 1)
    interface = socket.inet_aton(address)
    try:
        with _shared_socket() as listening, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
            listening.setsockopt(
                socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(_GROUP) + interface
            )
            sending.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
            sending.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
            sending.bind((address, 0))
            sending.sendto(packet, (_GROUP, _PORT))
            return "" if _hears(listening, packet) else f"nothing came back within {_ECHO_S:g} s"
    except OSError as error:
        return error.strerror or str(error)


def _hears(listening: socket.socket, packet: bytes) -> bool:
    end_s = time.monotonic() + _ECHO_S
    while (left_s := end_s - time.monotonic()) > 0:
        if not select.select([listening], [], [], left_s)[0]:
            return False
        if listening.recv(9000) == packet:
            return True
    return False


def _shared_socket() -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        opened.bind(("", _PORT))
    except OSError:
        opened.close()
        raise
    return opened


def _holders() -> list[str]:
    """Programs that have UDP 5353 open; without root the system tells of the user's own only."""
    try:
        pids = {c.pid for c in psutil.net_connections("udp") if c.laddr and c.laddr.port == _PORT and c.pid}
    except (psutil.Error, OSError):
        return []
    names = []
    for pid in sorted(pids):
        try:
            names.append(f"{psutil.Process(pid).name()} (process {pid})")
        except psutil.Error:  # it has ended
            continue
    return names


def _nearest(folder: Path) -> Path:
    """What is there of a folder's path; a file in its place then gives the error that it should."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
