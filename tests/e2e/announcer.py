"""A process that announces itself and tells on stdout, one JSON line per change, what it sees. Holds no test.

Arguments as JSON: name, key, service_type, is_loopback, ask (addresses to ask directly). It says goodbye when
its stdin closes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from dcnr_app.clock import SystemClock
from dcnr_app.cluster.dialling import first_reachable
from dcnr_app.cluster.discovery import Discovery, DiscoverySettings
from dcnr_app.errors import DcnrError
from tests.cluster.announced import announcement

_LOOK_S = 0.1


async def announce(wanted: dict[str, Any]) -> None:
    """Announce, serve the front door's port without a protocol, and tell what is seen until stdin closes."""
    door = await asyncio.start_server(lambda reader, writer: writer.close(), "0.0.0.0", 0)  # noqa: S104
    port = door.sockets[0].getsockname()[1]
    settings = DiscoverySettings(
        is_loopback=wanted.get("is_loopback", False), service_type=wanted["service_type"]
    )
    async with door, asyncio.TaskGroup() as tasks:
        discovery = Discovery(settings, tasks, SystemClock(), lambda: None, lambda machine: False)
        own = announcement(wanted["name"], key=wanted.get("key", wanted["name"]), front_door_port=port)
        await discovery.start(own)
        discovery.ask_directly(wanted.get("ask", ()))
        telling = tasks.create_task(_tell(discovery))
        await asyncio.to_thread(sys.stdin.read)
        telling.cancel()
        await discovery.close()


async def _tell(discovery: Discovery) -> None:
    """Whenever what is seen reads differently, say so; dial whom it has not dialled yet."""
    told, reached = "", dict[str, str]()
    while True:
        for seen in discovery.snapshot():
            if seen.machine not in reached and seen.addresses:
                reached[seen.machine] = await _reach(seen.addresses, seen.announcement.front_door_port)
        silence = discovery.silence()
        line = json.dumps(
            {
                "seen": [
                    {
                        "name": seen.announcement.name,
                        "machine": seen.machine,
                        "state": seen.state,
                        "addresses": seen.addresses,
                        "is_duplicate": seen.is_duplicate,
                        "reached": reached.get(seen.machine, ""),
                    }
                    for seen in discovery.snapshot()
                ],
                "announced": discovery.announced_addresses,
                "silence": silence.cause if silence else "",
            }
        )
        if line != told:
            told = line
            stamped = {**json.loads(line), "at_s": time.monotonic()}
            sys.stdout.write(json.dumps(stamped) + "\n")
            sys.stdout.flush()
        await asyncio.sleep(_LOOK_S)


async def _reach(addresses: tuple[str, ...], port: int) -> str:
    try:
        return (await first_reachable(addresses, port, 3.0)).address
    except DcnrError as error:
        return f"{error.what}: {error.why}"


if __name__ == "__main__":
    asyncio.run(announce(json.loads(sys.argv[1])))
