"""Named places where a test lets this process die, stand still, fail, wait or flip a bit.

Knows no layer above it and no global: who owns a place is given the `Failpoints` and calls `hit` there, e.g.
`failpoints.hit("transport.send")`. Which are armed is one text, the value of DCNR_FAILPOINT:
`NAME[#PROCESS]:ACTION[@N|@N+]`, several with commas between, such as `transport.receive#worker-1:corrupt@5+`.
The action comes at the N-th hit (default 1), with `+` at every hit from then on; `#PROCESS` arms it in
the process of that PNode alone.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from dcnr_app.errors import DcnrError, UserError

_ANYWHERE: Final = ("kill", "stop", "raise", "sleep")
_WITH_BYTES: Final = (*_ANYWHERE, "corrupt")

PLACES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "transport.send": _ANYWHERE,  # before a message goes in line for its stream
        "transport.receive": _WITH_BYTES,  # a frame of a member, after TLS, before anything is read from it
    }
)
"""Every place, with the actions that make sense there. A new place is a line here and a `hit` there."""

_FORM: Final = re.compile(
    r"(?P<name>[a-z.-]+)(#(?P<process>[a-z0-9._-]+))?:(?P<action>[a-z]+)(=(?P<seconds>\d+(\.\d+)?))?"
    r"(@(?P<nth>[1-9]\d*)(?P<onward>\+)?)?"
)


class InjectedError(DcnrError):
    """What the action `raise` raises."""


class Failpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One armed place. `seconds` is for `sleep`; `process` is empty for all processes."""

    name: str
    action: str
    process: str = ""
    seconds: float = 0.0
    nth: int = 1
    goes_on: bool = False


def parse(text: str) -> tuple[Failpoint, ...]:
    """The failpoints that `text` describes; none if it is empty. Raises UserError for whatever is unknown."""
    return tuple(_parse_one(part.strip()) for part in text.split(",") if part.strip())


class Failpoints:
    """Those that are armed in this process, and how often each place was hit. Thread-safe enough for tests:
    a place belongs to one thread."""

    def __init__(self, armed: tuple[Failpoint, ...] = (), process: str = "") -> None:
        self._armed = tuple(each for each in armed if each.process in ("", process))
        self._hits: dict[str, int] = {}

    def hit(self, name: str) -> None:
        """This place is reached. Dies, stands still, raises InjectedError or sleeps if that is armed and
        due."""
        if self._armed:
            self._due(name)

    def hit_with(self, name: str, data: bytes) -> bytes:
        """As `hit`, for a place with bytes: returns them, with one bit in their middle flipped if armed and
        due."""
        if self._armed and any(each.action == "corrupt" for each in self._due(name)):
            middle = len(data) // 2
            return data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]
        return data

    def _due(self, name: str) -> list[Failpoint]:
        n_hits = self._hits[name] = self._hits.get(name, 0) + 1
        due = [
            each
            for each in self._armed
            if each.name == name and (n_hits == each.nth or (each.goes_on and n_hits > each.nth))
        ]
        for each in due:
            _carry_out(each)
        return due


def _carry_out(point: Failpoint) -> None:
    match point.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raise":
            raise InjectedError(f"failpoint {point.name}", why="it was armed to raise")
        case "sleep":
            time.sleep(point.seconds)
        case _:
            pass  # `corrupt` is up to the place


def _parse_one(text: str) -> Failpoint:
    found = _FORM.fullmatch(text)
    if found is None:
        raise _refused(text, "it should read NAME[#PROCESS]:ACTION[@N|@N+]")
    name, action, seconds = found["name"], found["action"], found["seconds"]
    if name not in PLACES:
        raise _refused(text, f"there is no place {name!r}, only {', '.join(sorted(PLACES))}")
    if action not in PLACES[name]:
        raise _refused(text, f"{action!r} is no action there, only {', '.join(PLACES[name])}")
    if (action == "sleep") != (seconds is not None):
        raise _refused(text, "`sleep`, and only that, needs its seconds, such as sleep=0.5")
    return Failpoint(
        name=name,
        action=action,
        process=found["process"] or "",
        seconds=float(seconds or 0),
        nth=int(found["nth"] or 1),
        goes_on=found["onward"] is not None,
    )


def _refused(text: str, why: str) -> UserError:
    return UserError(f"failpoint {text!r} is not understood", why=why, fix="correct or unset DCNR_FAILPOINT")
