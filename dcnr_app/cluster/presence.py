"""What limits depend on besides the clock, and how a process keeps to them. IO.

What a system does not tell is None, never a guess.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from datetime import datetime

import psutil

from dcnr_app.cluster.limits import Verdict, allowed_now
from dcnr_app.limits import Limits

_ASK_S = 2.0
_WINDOW = re.compile(r"window id # (0x[0-9a-fA-F]+)")
# SHQueryUserNotificationState: a full-screen program, Direct3D full screen, presentation.
_WINDOWS_FULL_SCREEN = frozenset({2, 3, 4})


def verdict_now(limits: Limits) -> Verdict:
    """Whether the owner allows work at this moment; asks the system only about what the limits mention.

    May take two seconds: call it off the event loop.
    """
    now = datetime.now().astimezone()
    battery = None if limits.on_battery else on_battery()
    full_screen = None if limits.during_full_screen else is_full_screen()
    return allowed_now(limits, 60 * now.hour + now.minute, battery, full_screen)


def on_battery() -> bool | None:
    """Whether this machine runs on battery; False where it has none."""
    if not hasattr(psutil, "sensors_battery"):  # psutil leaves it out where the system has no such thing
        return None
    battery = psutil.sensors_battery()
    if battery is None:
        return False
    return None if battery.power_plugged is None else not battery.power_plugged


def is_full_screen() -> bool | None:
    """Whether the program in front fills the screen: known on Windows, and on X11 with `xprop`."""
    if sys.platform == "win32":
        return _windows_full_screen()
    if sys.platform == "linux":
        return _x11_full_screen()
    return None


def _x11_full_screen() -> bool | None:
    xprop = shutil.which("xprop")
    if xprop is None:
        return None
    front = _WINDOW.search(_answer(xprop, "-root", "_NET_ACTIVE_WINDOW"))
    if front is None:
        return None
    if int(front[1], 16) == 0:
        return False  # nothing is in front
    state = _answer(xprop, "-id", front[1], "_NET_WM_STATE")
    return "_NET_WM_STATE_FULLSCREEN" in state if state else None


def _answer(*command: str) -> str:
    """What a command prints, or an empty text if it fails: no display, no such window, no answer in time."""
    try:
        done = subprocess.run(  # noqa: S603  # arguments are ours, no shell
            command, capture_output=True, text=True, check=False, timeout=_ASK_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _windows_full_screen() -> bool | None:
    if sys.platform != "win32":
        return None
    import ctypes

    state = ctypes.c_int()
    failed = ctypes.windll.shell32.SHQueryUserNotificationState(ctypes.byref(state))
    return None if failed else state.value in _WINDOWS_FULL_SCREEN


def keep_to_cores(n_cores: int) -> bool:
    """Let this process run on so many of its cores only; whether this system could do it."""
    if sys.platform != "linux":
        return False
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, usable[: max(1, n_cores)])
    return True


def keep_to_memory(more_bytes: int) -> bool:
    """Let this process take at most so many bytes more than it has; beyond, allocations fail, which a PNode
    reports as memory that ran out. Whether this system could do it."""
    if sys.platform != "linux":
        return False
    import resource

    used_bytes = int(psutil.Process().memory_info().data)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used_bytes + more_bytes
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    return True
