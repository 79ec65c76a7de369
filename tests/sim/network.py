"""A network between simulated processes: streams that are late, held back, cut and broken. Knows no session.

Between two processes there is one link, as in the gRPC transport: it breaks as a whole, each end hears of it
at its own time, and whoever sends next makes a new one. On a link the messages of a sender keep their order
per channel if the weather says so; what is under way when it breaks is lost.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dcnr_app.cluster.messages import AnyMessage
from dcnr_app.ids import PNodeId
from tests.sim.process import Process, Time

HostArray = np.ndarray[Any, Any]
SILENCE_MS = 5_000.0
"""Without an answer for this long, an end takes its peer for gone."""
_NO_ANSWER = f"no answer for {SILENCE_MS / 1000:.0f} s"


class Weather(NamedTuple):
    """How the network behaves: messages are late by up to `late_ms`, one in twenty ten times that; they
    arrive twice with `twice`; after a break each end hears of it within `notice_ms`."""

    late_ms: float = 5.0
    twice: float = 0.0
    in_order: bool = True
    notice_ms: float = 50.0


class Parcel(NamedTuple):
    """A message under way."""

    message: AnyMessage
    tensors: Mapping[str, HostArray]


class Link:
    """All streams between two processes, from the first message to the break."""

    def __init__(self, one: Process, other: Process) -> None:
        self.ends = (one, other)
        self.is_dead = False
        self.is_accepted = False
        self.unaware = {one.address, other.address}
        """Ends that have not heard of a break."""
        self.last_ms: dict[tuple[str, bool], float] = {}
        self.held: list[tuple[Process, Parcel]] = []

    def other(self, end: Process) -> Process:
        """The other end."""
        return self.ends[1] if end is self.ends[0] else self.ends[0]


class Wires:
    """All links, and the ways between machines that are cut."""

    def __init__(self, time: Time, weather: Weather, chance: random.Random) -> None:
        self._time = time
        self._after = time.after
        self._weather = weather
        self._chance = chance
        self._cuts: dict[tuple[str, str], int] = {}
        self._n_cuts = 0
        self._links: list[Link] = []
        self.open: dict[str, Process] = {}
        """Processes that listen, by address."""

    # ---- messages

    def send(self, sender: Process, to: PNodeId, parcel: Parcel) -> None:
        """Send over the link with a peer, which is made if there is none."""
        link = sender.links.get(to)
        if link is None:
            link = self._dial(sender, to)
        if link.is_dead:
            return  # the sender will hear of it
        for n_th in range(1 + (self._chance.random() < self._weather.twice)):
            self._put_on(link, sender, parcel, is_copy=n_th > 0)

    def _dial(self, sender: Process, to: PNodeId) -> Link:
        target = self.open.get(sender.address_of(to))
        crossing = None if target is None else target.links.get(sender.pnode)
        if crossing is not None and sender in crossing.ends and not crossing.is_accepted:
            sender.links[to] = crossing  # both dialled at once: their streams are one link
            return crossing
        link = Link(sender, target or sender)
        sender.links[to] = link
        if target is None:
            self._die(link, f"{to}: nothing listens there")
            return link
        self._links = [each for each in self._links if not each.is_dead]
        self._links.append(link)
        if self.is_cut(sender.machine, target.machine):
            self._await_silence(link, self._n_cuts)
        return link

    def _put_on(self, link: Link, sender: Process, parcel: Parcel, *, is_copy: bool) -> None:
        late_ms = self._chance.uniform(0.0, self._weather.late_ms)
        late_ms *= 10.0 if self._chance.random() < 0.05 else 1.0
        due_ms = self._time.now_ms + late_ms
        if self._weather.in_order and not is_copy:
            lane = (sender.address, bool(parcel.tensors))
            due_ms = link.last_ms[lane] = max(due_ms, link.last_ms.get(lane, 0.0))
        self._after(due_ms - self._time.now_ms, lambda: self._land(link, sender, parcel))

    def _land(self, link: Link, sender: Process, parcel: Parcel) -> None:
        receiver = link.other(sender)
        if link.is_dead or receiver.address not in link.unaware:
            return
        if (sender.machine, receiver.machine) in self._cuts:
            link.held.append((sender, parcel))
            return
        receiver.run(lambda: self._hand_over(link, sender, receiver, parcel))

    def _hand_over(self, link: Link, sender: Process, receiver: Process, parcel: Parcel) -> None:
        if receiver.address in link.unaware and self._accept(link, sender, receiver):
            fresh = {name: tensor.copy() for name, tensor in parcel.tensors.items()}
            receiver.arrive(sender.pnode, parcel.message, fresh)

    def _accept(self, link: Link, sender: Process, receiver: Process) -> bool:
        """Whether the receiver takes messages of this link: it knows who dials, and drops an older link."""
        current = receiver.links.get(sender.pnode)
        if current is link:
            return True
        if link.is_dead:
            return False
        if link.is_accepted or not receiver.admits(sender):
            self._die(link, f"{receiver.pnode} refused the stream")
            return False
        if current is not None:
            self._die(current, f"{sender.pnode} opened a new stream")
            self._tell(current, receiver, f"{sender.pnode} opened a new stream")
        link.is_accepted = True
        receiver.links[sender.pnode] = link
        return True

    # ---- links that break

    def _die(self, link: Link, reason: str, within_ms: float = 0.0) -> None:
        """Nothing arrives over the link any more; its ends hear of it one after the other, at the latest
        after `within_ms` or, if that is 0, as a reset gets through."""
        if link.is_dead:
            return
        link.is_dead, link.held = True, []
        for end in dict.fromkeys(link.ends):
            is_cut = self.is_cut(end.machine, link.other(end).machine)
            longest_ms = within_ms or (SILENCE_MS if is_cut else self._weather.notice_ms)
            delay_ms = self._chance.uniform(0.0, longest_ms)
            self._after(delay_ms, lambda end=end: end.run(lambda: self._tell(link, end, reason)))  # type: ignore[misc]

    def _tell(self, link: Link, end: Process, reason: str) -> None:
        if end.address not in link.unaware:
            return
        link.unaware.discard(end.address)
        for peer, known in list(end.links.items()):
            if known is link:
                del end.links[peer]
                end.hear_lost(peer, reason)

    def forget(self, end: Process, peer: PNodeId) -> None:
        """An end takes a peer out of its membership: it is not told, the peer is."""
        link = end.links.pop(peer, None)
        if link is not None:
            link.unaware.discard(end.address)
            self._die(link, f"{end.pnode} removed {peer} from the membership")

    def break_links(self, one: str, other: str) -> None:
        """Reset what two machines have between them."""
        for link in self._between(one, other):
            self._die(link, "connection reset")

    def break_at(self, end: Process, peer: PNodeId) -> None:
        """Reset the link with a peer; this end hears of it at once, the other one later."""
        link = end.links[peer]
        self._die(link, "connection reset")
        self._tell(link, end, "connection reset")

    def lose_all(self, process: Process) -> None:
        """All peers give up a process that does not answer."""
        for link in self._links:
            if process in link.ends:
                self._die(link, _NO_ANSWER)

    def close(self, process: Process) -> None:
        """A process is gone: its peers see a reset, or silence if a cut hides it."""
        self.open.pop(process.address, None)
        for link in self._links:
            if process in link.ends:
                self._die(link, f"{process.pnode} closed its streams")

    # ---- cuts

    def is_cut(self, one: str, other: str) -> bool:
        """Whether a round trip between two machines is impossible."""
        return (one, other) in self._cuts or (other, one) in self._cuts

    def cut(self, ways: Iterable[tuple[str, str]]) -> None:
        """From now on nothing gets from the first machine of each pair to the second. Without a round trip
        links die of silence."""
        self._n_cuts += 1
        for way in ways:
            self._cuts[way] = self._n_cuts
            for link in self._between(*way):
                self._await_silence(link, self._n_cuts)

    def heal(self, ways: Iterable[tuple[str, str]]) -> None:
        """What was held back and not given up arrives now."""
        for way in ways:
            self._cuts.pop(way, None)
        for link in self._links:
            held, link.held = link.held, []
            for sender, parcel in held:
                self._put_on(link, sender, parcel, is_copy=False)

    def _await_silence(self, link: Link, number: int) -> None:
        def check() -> None:
            machines = {end.machine for end in link.ends}
            if any(set(way) == machines and since <= number for way, since in self._cuts.items()):
                self._die(link, _NO_ANSWER, 0.3 * SILENCE_MS)

        self._after(0.7 * SILENCE_MS, check)

    def _between(self, one: str, other: str) -> list[Link]:
        return [
            link
            for link in self._links
            if not link.is_dead and {end.machine for end in link.ends} == {one, other}
        ]
