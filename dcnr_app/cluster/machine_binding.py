"""What tells this machine from any other: the system's own id of it. IO, reads only."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

_LINUX_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_IOREG = ("/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice")
_COMMAND_S = 5


def machine_binding() -> str:
    """A text that stays the same on this machine and differs on another: /etc/machine-id (Linux),
    IOPlatformUUID (macOS), MachineGuid (Windows); the host's name where the system has none.

    Never stored or sent as it is, only hashed: systems ask that their ids be kept private.
    """
    found = _system_id()
    return f"id {found}" if found else f"host {socket.gethostname().lower()}"


def _system_id() -> str:
    if sys.platform == "win32":
        return _windows_id()
    if sys.platform == "darwin":
        return _macos_id()
    return next(filter(None, map(_line_of, _LINUX_FILES)), "")


def _line_of(path: Path) -> str:
    try:
        line = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
    return line if re.fullmatch(r"[0-9a-fA-F]{32}", line) else ""  # "uninitialized" while an image is built


def _macos_id() -> str:
    try:
        done = subprocess.run(  # noqa: S603  # a fixed command
            _IOREG, capture_output=True, text=True, check=False, timeout=_COMMAND_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return platform_uuid(done.stdout)


def platform_uuid(listing: str) -> str:
    """The IOPlatformUUID in what `ioreg` lists, or an empty text."""
    found = re.search(r'"IOPlatformUUID"\s*=\s*"([0-9A-Fa-f-]{36})"', listing)
    return found.group(1).lower() if found else ""


def _windows_id() -> str:
    if sys.platform != "win32":
        return ""
    import winreg  # exists on Windows only

    flags = winreg.KEY_READ | winreg.KEY_WOW64_64KEY
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SOFTWARE\Microsoft\Cryptography", 0, flags) as key:
            return str(winreg.QueryValueEx(key, "MachineGuid")[0]).lower()
    except OSError:
        return ""
