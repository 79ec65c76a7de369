"""An independent implementation of multicast DNS sees this app's service, with all that it says: avahi."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dcnr_app.cluster.announcement import SERVICE_TYPE, read_txt
from tests.e2e.lan import Announcer, Lan, Machine, lan

pytestmark = pytest.mark.e2e

_LIMIT_S = 10.0
_BUS = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path={socket}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*"/>
<allow receive_sender="*"/></policy></busconfig>"""
_PRINTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


class Avahi:
    """avahi-daemon on a bus of its own, on one machine of the network."""

    def __init__(self, machine: Machine, environment: dict[str, str]) -> None:
        self._machine = machine
        self._environment = environment

    def browse(self) -> list[list[str]]:
        """What avahi-browse resolves of this app's services: the fields of each line."""
        done = subprocess.run(
            [*self._machine.prefix, "avahi-browse", "-rpt", SERVICE_TYPE.removesuffix(".local.")],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        assert done.returncode == 0, done.stderr
        return [line.split(";", 9) for line in done.stdout.splitlines() if line.startswith("=;")]

    def until_resolved(self, n: int) -> list[list[str]]:
        """Browse until so many IPv4 services are resolved."""
        end = time.monotonic() + _LIMIT_S
        while True:
            found = [fields for fields in self.browse() if fields[2] == "IPv4"]
            if len(found) == n:
                return found
            assert time.monotonic() < end, f"after {_LIMIT_S} s avahi sees {found}"


@contextmanager
def avahi(machine: Machine, folder: Path) -> Iterator[Avahi]:
    """Start bus and daemon; skips by name where they are not installed."""
    for program in ("dbus-daemon", "avahi-daemon", "avahi-browse", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (apt-get install avahi-daemon avahi-utils dbus)")
    bus = folder / "bus"
    (folder / "bus.conf").write_text(_BUS.format(socket=bus), encoding="utf-8")
    environment = {**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={bus}"}
    # The daemon's pid file is fixed, one per system: it gets a folder of its own there.
    own_folder = "mkdir -p /run/avahi-daemon && mount -t tmpfs tmpfs /run/avahi-daemon"
    daemon = f"{own_folder} && exec avahi-daemon --no-drop-root --no-chroot --no-rlimits"
    with ExitStack() as stack:
        for command in (
            ["dbus-daemon", f"--config-file={folder / 'bus.conf'}", "--nofork"],
            [*machine.prefix, "unshare", "--mount", "sh", "-c", daemon],
        ):
            _start(stack, command, environment)
            _wait_for(bus)
        started = Avahi(machine, environment)
        _until_it_answers(started)
        yield started


def _start(stack: ExitStack, command: list[str], environment: dict[str, str]) -> None:
    process = stack.enter_context(
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    )
    stack.callback(process.kill)


def _wait_for(path: Path) -> None:
    end = time.monotonic() + _LIMIT_S
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)


def _until_it_answers(daemon: Avahi) -> None:
    end = time.monotonic() + _LIMIT_S
    while True:
        try:
            daemon.browse()
        except AssertionError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return


def test_avahi_resolves_the_service_and_its_txt_record_and_sees_it_go(tmp_path: Path) -> None:
    with lan() as network:
        network.service_type = SERVICE_TYPE
        a, b = network.machine("10.55.0.1"), network.machine("10.55.0.2")
        with avahi(b, tmp_path) as daemon:
            announcer = _announce(network, a)
            (fields,) = daemon.until_resolved(1)
            said = read_txt(_txt(fields[9]))
            assert (said.name, fields[7]) == ("Käthe's machine", "10.55.0.1")
            assert (said.front_door_port, fields[3]) == (int(fields[8]), said.instance)
            announcer.end()
            daemon.until_resolved(0)


def _announce(network: Lan, machine: Machine) -> Announcer:
    return network.announcer(machine, "Käthe's machine")


def _txt(printed: str) -> dict[bytes, bytes | None]:
    r"""avahi prints each string of the record in quotes; bytes beyond ASCII as \195."""
    pairs = [
        re.sub(rb"\\(\d{3})", lambda m: bytes([int(m[1])]), text.encode("utf-8", "surrogateescape"))
        for text in _PRINTED.findall(printed)
    ]
    return {key: value for key, _, value in (pair.partition(b"=") for pair in pairs)}
