"""Announces this machine on every usable interface and listens for others (multicast DNS). IO.

What is heard is a hint. Others are told at the start, at every change and, ever more rarely, again: networks
lose multicast. A neighbour that was silent is asked whether it is there: a killed one says no goodbye.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from dcnr_app.clock import Clock
from dcnr_app.cluster.addresses import (
    Interface,
    announced_addresses,
    dialled_addresses,
    multicast_targets,
    parse_address,
)
from dcnr_app.cluster.announcement import SERVICE_TYPE, Announcement, read_txt, write_txt
from dcnr_app.cluster.damping import Damper, Repeater
from dcnr_app.cluster.interfaces import usable_interfaces
from dcnr_app.cluster.mdns_listener import Hearers
from dcnr_app.cluster.multicast import MulticastService, Service, joinable
from dcnr_app.cluster.neighbours import Neighbour, Neighbours
from dcnr_app.cluster.silence import Hearing, Silence, why_nobody
from dcnr_app.errors import RefusedError, UnreachableError, UserError

_TICK_S: Final = 0.5
_GATHER_S: Final = 0.05
_POLL_MS: Final = 1_000.0
_JITTER_MS: Final = 800
_IO_TIMEOUT_S: Final = 5.0
_RETRY_MS: Final = 5_000.0
_MAX_ASKED: Final = 16

_LOG = logging.getLogger(__name__)


class DiscoverySettings(msgspec.Struct, frozen=True, kw_only=True):
    """`advertise` replaces the interfaces' addresses in what others are told, where a container hides them.
    `is_loopback` keeps everything on this machine, for tests and several agents on one. `service_type`
    separates worlds that must not meet. Raises UserError for an address that cannot be dialled."""

    advertise: tuple[str, ...] = ()
    is_loopback: bool = False
    service_type: str = SERVICE_TYPE

    def __post_init__(self) -> None:
        """Refuse what nobody could dial."""
        for text in self.advertise:
            address = parse_address(text)
            if address is None or address.is_unspecified or address.is_multicast:
                raise UserError(f"{text!r} cannot be advertised", why="it is no address of a machine")


class Discovery:
    """This machine's presence on the local network and what it hears there.

    `tasks` owns the work between start and close. `on_change` is called on the event loop, at most every
    50 ms, when `snapshot` reads differently. `is_connected` says of a machine id whether an authenticated
    stream with it is open: such a machine is live whatever is heard. Trouble with the network never raises:
    `silence` says it, and it is tried again.
    """

    def __init__(
        self,
        settings: DiscoverySettings,
        tasks: asyncio.TaskGroup,
        clock: Clock,
        on_change: Callable[[], None],
        is_connected: Callable[[str], bool],
    ) -> None:
        self._settings = settings
        self._tasks = tasks
        self._clock = clock
        self._on_change = on_change
        self._neighbours = Neighbours(is_connected)
        hearers = Hearers(heard=self._heard, incomplete=self._heard_half, gone=self._heard_goodbye)
        self._service = MulticastService(settings.service_type, hearers)
        self._damper: Damper[tuple[Interface, ...]] = Damper(())
        self._interfaces: tuple[Interface, ...] = ()
        self._run = secrets.token_hex(3)
        self._own: Announcement | None = None
        self._tending: asyncio.Task[None] | None = None
        self._stirred = asyncio.Event()
        self._incomplete: dict[str, None] = {}
        self._direct: tuple[str, ...] = ()
        self._failures: dict[str, str] = {}
        self._is_deaf = False
        self._since_ms = self._polled_ms = self._followed_ms = 0.0
        self._repeater = Repeater()
        self._has_heard_own = False
        self._shown: object = []

    @property
    def own(self) -> Announcement:
        """What this machine announces. Only between start and close."""
        if self._own is None:
            raise UnreachableError("this machine announces nothing", why="discovery is not started")
        return self._own

    @property
    def announced_addresses(self) -> tuple[str, ...]:
        """The addresses that others are told, best first."""
        is_loopback = self._settings.is_loopback
        return self._settings.advertise or announced_addresses(self._interfaces, with_loopback=is_loopback)

    async def start(self, announcement: Announcement) -> None:
        """Announce and listen. `announcement.run` is set here."""
        now_ms = self._clock.monotonic_ms()
        self._own = msgspec.structs.replace(announcement, run=self._run)
        self._neighbours.begin(self._own, now_ms)
        self._since_ms = self._polled_ms = now_ms
        self._interfaces = await self._look()
        self._damper = Damper(self._interfaces)
        await self._follow()
        self._tending = self._tasks.create_task(self._tend())

    async def update(self, announcement: Announcement) -> None:
        """Announce this from now on."""
        self._own = msgspec.structs.replace(announcement, run=self._run)
        await self._follow()

    async def close(self) -> None:
        """Say goodbye and stop listening."""
        if self._tending is not None:
            self._tending.cancel()
            self._tending = None
        try:
            await self._service.close()
        except UnreachableError as error:
            _LOG.warning("no goodbye was said: %s", error.why)

    def snapshot(self) -> tuple[Neighbour, ...]:
        """The other machines, by name, as of now. Empty before the start."""
        return self._neighbours.snapshot(self._clock.monotonic_ms())

    def silence(self) -> Silence | None:
        """Why nobody else is seen; None while others are, or while it is too early to say."""
        now_ms = self._clock.monotonic_ms()
        return why_nobody(
            Hearing(
                interfaces=self._interfaces,
                socket_error="; ".join(self._failures.values()) if self._is_deaf else "",
                heard_own=self._has_heard_own,
                n_others=self._neighbours.n_counted(now_ms),
                listening_ms=now_ms - self._since_ms,
            )
        )

    def ask_directly(self, addresses: Sequence[str]) -> None:
        """Ask for others by unicast at these addresses too, now and at every repeat: for known machines on a
        network that carries no multicast. Replaces the addresses given before."""
        self._direct = tuple(addresses)[:_MAX_ASKED]
        self._repeat_soon()

    def tell(self, announcement: Announcement, addresses: Sequence[str]) -> bool:
        """Another machine introduced itself by another way than multicast, as at the front door. False if
        there is no room for one more."""
        self._stirred.set()
        return self._neighbours.heard(announcement, self._dialled(addresses), self._clock.monotonic_ms())

    def confirm(self, machine: str) -> None:
        """The machine was heard over an authenticated stream."""
        self._neighbours.confirmed(machine, self._clock.monotonic_ms())

    def failed_dial(self, machine: str, address: str) -> None:
        """This address of the machine did not answer: it is out, and the machine is asked for its present
        ones."""
        self._neighbours.failed_dial(machine, address, self._clock.monotonic_ms())
        self._stirred.set()

    async def _tend(self) -> None:
        while True:
            await self._rest()
            now_ms = self._clock.monotonic_ms()
            if now_ms - self._polled_ms >= _POLL_MS:
                self._polled_ms = now_ms
                await self._watch_interfaces(now_ms)
            self._ask(now_ms)
            self._repeat(now_ms)
            self._tell_changes(now_ms)

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(_TICK_S):
                await self._stirred.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_GATHER_S)
        self._stirred.clear()

    async def _watch_interfaces(self, now_ms: float) -> None:
        is_new = self._damper.observe(await self._look(), now_ms)
        if is_new or (self._failures and now_ms - self._followed_ms >= _RETRY_MS):
            self._interfaces = self._damper.value
            await self._follow()
            if is_new:
                self._repeat_soon()

    async def _look(self) -> tuple[Interface, ...]:
        is_loopback = self._settings.is_loopback
        try:
            async with asyncio.timeout(_IO_TIMEOUT_S):
                found = await asyncio.to_thread(usable_interfaces, with_loopback=is_loopback)
        except (OSError, TimeoutError) as error:
            _LOG.warning("the interfaces cannot be listed: %s", error)
            return self._interfaces
        return tuple(i for i in found if i.kind == "loopback") if is_loopback else found

    async def _follow(self) -> None:
        """Bring sockets and announcement in line with the interfaces."""
        self._followed_ms = self._clock.monotonic_ms()
        targets, failures = await asyncio.to_thread(joinable, multicast_targets(self._interfaces))
        try:
            if self._service.is_open:
                await self._publish()
                await self._service.move(targets)
            elif targets:
                await self._service.open(targets)
                await self._publish()
        except UnreachableError as error:
            failures["multicast DNS"] = error.why
        self._is_deaf = not targets or "multicast DNS" in failures
        if failures != self._failures:
            level = (
                logging.WARNING if self._is_deaf else logging.INFO
            )  # an address is new for a second or two
            _LOG.log(level, "interfaces left out failures=%s", failures)
        self._failures = failures

    async def _publish(self) -> None:
        own, addresses = self.own, self.announced_addresses
        if not addresses:
            return
        txt, port = write_txt(own), own.front_door_port
        await self._service.publish(Service(instance=own.instance, port=port, txt=txt, addresses=addresses))

    def _ask(self, now_ms: float) -> None:
        silent = self._neighbours.to_ask(now_ms, float(secrets.randbelow(_JITTER_MS)))
        self._service.ask([*silent, *self._incomplete][:_MAX_ASKED])
        self._incomplete.clear()
        for neighbour in self._neighbours.unanswered(now_ms)[:_MAX_ASKED]:
            self._service.ask_at(neighbour.addresses)

    def _repeat(self, now_ms: float) -> None:
        if self._repeater.is_due(now_ms):
            self._service.repeat()
            self._service.ask_at(self._direct)

    def _repeat_soon(self) -> None:
        self._repeater.start_over()
        self._stirred.set()

    def _tell_changes(self, now_ms: float) -> None:
        self._neighbours.expire(now_ms)
        shown = [
            (n.announcement, n.addresses, n.state, n.is_duplicate) for n in self._neighbours.snapshot(now_ms)
        ]
        if shown != self._shown:
            self._shown = shown
            self._on_change()

    def _heard(self, instance: str, txt: Mapping[bytes, bytes | None], addresses: tuple[str, ...]) -> bool:
        try:
            announcement = read_txt(txt)
        except RefusedError as error:
            _LOG.debug("announcement refused instance=%r why=%s", instance[:64], error.why)
            return False
        if announcement.instance != instance:
            _LOG.debug("announcement refused instance=%r why=it speaks of another", instance[:64])
            return False
        if instance == self.own.instance:
            self._has_heard_own = True
            return True
        return self.tell(announcement, addresses)

    def _heard_half(self, instance: str) -> None:
        if len(self._incomplete) < _MAX_ASKED:
            self._incomplete[instance] = None
            self._stirred.set()

    def _heard_goodbye(self, instance: str) -> None:
        self._neighbours.goodbye(instance)
        self._stirred.set()

    def _dialled(self, addresses: Sequence[str]) -> tuple[str, ...]:
        is_loopback = self._settings.is_loopback
        return dialled_addresses(addresses, self._interfaces, with_loopback=is_loopback)
