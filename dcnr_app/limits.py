"""What a machine's owner lets this app use, and when. Pure data with its checks; knows no layer above it."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from dcnr_app.errors import UserError

_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_PositiveInt = Annotated[int, Meta(ge=1, le=2**62)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The owner's limits; None and empty text stand for none.

    `memory_bytes` is the machine's memory that all PNodes here may take together, `device_memory_bytes` that
    of each device with memory of its own. `hours` is local time, `22:00-07:00`. `on_battery` and
    `during_full_screen` say whether to work then.
    """

    cores: _PositiveInt | None = None
    memory_bytes: _PositiveInt | None = None
    device_memory_bytes: _PositiveInt | None = None
    hours: str = ""
    on_battery: bool = True
    during_full_screen: bool = True


def check_limits(limits: Limits) -> Limits:
    """`limits` if the hours can be read. Raises UserError otherwise."""
    parse_hours(limits.hours)
    return limits


def in_words(limits: Limits) -> str:
    """The limits in one line; an empty text if there are none."""
    parts = []
    if limits.cores is not None:
        parts.append(f"{limits.cores} core{'s' if limits.cores > 1 else ''}")
    if limits.memory_bytes is not None:
        parts.append(f"{limits.memory_bytes / 2**30:.1f} GiB of memory")
    if limits.device_memory_bytes is not None:
        parts.append(f"{limits.device_memory_bytes / 2**30:.1f} GiB of device memory")
    if limits.hours:
        parts.append(limits.hours)
    if not limits.on_battery:
        parts.append("not on battery")
    if not limits.during_full_screen:
        parts.append("not while a full-screen program runs")
    return ", ".join(parts)


def parse_hours(hours: str) -> tuple[int, int] | None:
    """(from, to) in minutes after midnight, None for always. Raises UserError for anything but HH:MM-HH:MM
    with two different times."""
    if not hours:
        return None
    found = _HOURS.fullmatch(hours)
    begins, ends = (0, 0)
    if found is not None:
        first, second, third, fourth = (int(part) for part in found.groups())
        begins, ends = 60 * first + second, 60 * third + fourth
    if begins == ends:
        raise UserError(
            f"{hours!r} is not a span of hours",
            why="expected two different times of day, as in 22:00-07:00",
            fix="dcnr-app limits set --hours 22:00-07:00",
        )
    return begins, ends
