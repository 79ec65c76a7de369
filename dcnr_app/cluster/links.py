"""What a link between two PNodes can do, from messages that were answered over it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dcnr_app.cluster.devices import DeviceFacts, LinkFacts
from dcnr_app.cluster.messages import Probe, ProbeReply
from dcnr_app.ids import PNodeId

_SHORTEST_MS = 0.02
"""Differences below this are noise of the event loop: they would claim any bandwidth."""


class ProbeSample(msgspec.Struct, frozen=True):
    """One answered message: its bytes, when it was sent and when the answer was there."""

    n_bytes: int
    sent_ms: float
    answered_ms: float


class LinkEstimate(msgspec.Struct, frozen=True):
    """Round trip of a small message, and bytes per second of large ones."""

    round_trip_ms: float
    bytes_per_s: float


def answer_probe(message: Probe) -> ProbeReply:
    """What a member answers, at once, to whoever sent the probe."""
    return ProbeReply(number=message.number, n_bytes=len(message.payload))


def estimate_link(samples: Sequence[ProbeSample]) -> LinkEstimate | None:
    """The link behind the samples, or None where they have one size only.

    What disturbs a message only makes it slower, so the fastest of each size counts. The smallest gives the
    round trip; bandwidth is what the largest took beyond that.
    """
    fastest: dict[int, float] = {}
    for sample in samples:
        took_ms = sample.answered_ms - sample.sent_ms
        fastest[sample.n_bytes] = min(took_ms, fastest.get(sample.n_bytes, took_ms))
    if len(fastest) < 2:
        return None
    smallest, largest = min(fastest), max(fastest)
    beyond_ms = max(_SHORTEST_MS, fastest[largest] - fastest[smallest])
    return LinkEstimate(max(_SHORTEST_MS, fastest[smallest]), (largest - smallest) / beyond_ms * 1e3)


def links_between(
    devices: Sequence[DeviceFacts], machines: Mapping[tuple[str, str], LinkEstimate]
) -> tuple[LinkFacts, ...]:
    """Links of all pairs of PNodes on two machines between which it was measured, by (from, to) machine."""
    return tuple(
        LinkFacts(
            source=a.pnode,
            target=b.pnode,
            bytes_per_s=machines[a.machine, b.machine].bytes_per_s,
            round_trip_ms=machines[a.machine, b.machine].round_trip_ms,
        )
        for a in devices
        for b in devices
        if a.pnode != b.pnode and (a.machine, b.machine) in machines
    )


class KeptLink(msgspec.Struct, frozen=True, kw_only=True):
    """A measured link with the address over which it was reached: another address is another link."""

    source: PNodeId
    target: PNodeId
    address: str
    estimate: LinkEstimate
    wall_ms: int


def kept_link(
    kept: Sequence[KeptLink], source: PNodeId, target: PNodeId, address: str
) -> LinkEstimate | None:
    """What was measured over this address before, or None."""
    found = (entry for entry in kept if (entry.source, entry.target) == (source, target))
    return next((entry.estimate for entry in found if entry.address == address), None)


def with_link(kept: Sequence[KeptLink], new: KeptLink) -> tuple[KeptLink, ...]:
    """The kept links with this one in place of an older one between the same two."""
    others = [entry for entry in kept if (entry.source, entry.target) != (new.source, new.target)]
    return (*others, new)
