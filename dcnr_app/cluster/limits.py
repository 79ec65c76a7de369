"""What an owner's limits mean: whether work is allowed now, how many threads, how much memory. Pure."""

from __future__ import annotations

import msgspec

from dcnr_app.cluster.devices import SHARED_MEMORY_KINDS, DeviceFacts
from dcnr_app.limits import Limits, parse_hours

_DAY_MINUTES = 24 * 60


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether work is allowed now and, if not, why; `unknown` says what limits cannot be checked here."""

    is_allowed: bool
    reason: str = ""
    unknown: tuple[str, ...] = ()


def allowed_now(
    limits: Limits, now_local_minutes: int, on_battery: bool | None, full_screen: bool | None
) -> Verdict:
    """Whether the owner allows work now. `now_local_minutes` counts from midnight; None stands for what this
    system does not tell: such a limit forbids nothing, and is named. Raises UserError for hours that cannot
    be read."""
    reasons, unknown = [], []
    span = parse_hours(limits.hours)
    if span is not None and not _is_within(span, now_local_minutes):
        reasons.append(f"outside the hours {limits.hours}")
    if not limits.on_battery:
        if on_battery is None:
            unknown.append("whether this machine runs on battery")
        elif on_battery:
            reasons.append("on battery")
    if not limits.during_full_screen:
        if full_screen is None:
            unknown.append("whether a full-screen program runs")
        elif full_screen:
            reasons.append("a full-screen program runs")
    return Verdict(is_allowed=not reasons, reason="; ".join(reasons), unknown=tuple(unknown))


def _is_within(span: tuple[int, int], minutes: int) -> bool:
    begins, ends = span
    return (minutes - begins) % _DAY_MINUTES < (ends - begins) % _DAY_MINUTES


def threads_for(limits: Limits, n_cores: int, n_pnodes: int = 1) -> int:
    """Compute threads of each of the machine's PNodes, which share the cores that are allowed."""
    usable = n_cores if limits.cores is None else min(limits.cores, n_cores)
    return max(1, usable // max(1, n_pnodes))


def limited(device: DeviceFacts, limits: Limits, taken_bytes: int = 0) -> DeviceFacts:
    """The device with no more free memory and cores than its owner allows; `taken_bytes` of the allowance are
    in use by this app already."""
    is_shared = device.kind in SHARED_MEMORY_KINDS
    allowed_bytes = limits.memory_bytes if is_shared else limits.device_memory_bytes
    free_bytes = device.free_memory_bytes
    if allowed_bytes is not None:
        left_bytes = max(0, allowed_bytes - taken_bytes)
        free_bytes = left_bytes if free_bytes is None else min(free_bytes, left_bytes)
    cores = device.cores
    if limits.cores is not None:
        cores = min(limits.cores, cores) if cores else limits.cores
    return msgspec.structs.replace(device, free_memory_bytes=free_bytes, cores=cores)
