"""Opens an agent's front door on the best port that is free. IO."""

from __future__ import annotations

import msgspec

from dcnr_app.clock import Clock
from dcnr_app.cluster.front_door import FrontDoor, FrontDoorHandlers, FrontDoorSettings
from dcnr_app.cluster.pairing_messages import FRONT_DOOR_PORT
from dcnr_app.errors import UserError

LOOPBACK = "127.0.0.1"
_EVERYWHERE = "0.0.0.0"  # noqa: S104  # the door that strangers knock at


class OpenDoor(msgspec.Struct, frozen=True):
    """A front door that listens; `notice` says why not on the usual port."""

    door: FrontDoor
    port: int
    notice: str = ""


async def open_front_door(handlers: FrontDoorHandlers, clock: Clock, *, is_loopback: bool) -> OpenDoor:
    """On the usual port if it is free, over IPv6 too where there is such a thing; with `is_loopback` on any
    port of this machine alone. Raises UserError if nothing can be listened on."""
    if is_loopback:
        door = FrontDoor(FrontDoorSettings(hosts=(LOOPBACK,), port=0), handlers, clock)
        return OpenDoor(door, await door.start())
    refused: list[UserError] = []
    for port in (FRONT_DOOR_PORT, 0):
        for hosts in ((_EVERYWHERE, "::"), (_EVERYWHERE,)):
            door = FrontDoor(FrontDoorSettings(hosts=hosts, port=port), handlers, clock)
            try:
                found = await door.start()
            except UserError as error:
                refused.append(error)
                continue
            is_usual = port == FRONT_DOOR_PORT
            notice = "" if is_usual else f"the front door is on port {found}: {refused[-1].why}"
            return OpenDoor(door, found, notice)
    raise refused[-1]
