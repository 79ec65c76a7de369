"""A link's figures come out of the answers' times, over real streams too, and are kept while its address
is the same."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr_app.cluster.grpc_transport import GrpcTransport
from dcnr_app.cluster.identity import ClusterAuthority, fingerprint
from dcnr_app.cluster.link_probe import KeptLinks, LinkProbe, linked
from dcnr_app.cluster.links import (
    KeptLink,
    LinkEstimate,
    ProbeSample,
    answer_probe,
    estimate_link,
    links_between,
)
from dcnr_app.cluster.memory_transport import MemoryHub, MemoryTransport
from dcnr_app.cluster.messages import AnyMessage, Probe, ProbeReply, TensorHeader
from dcnr_app.cluster.transport import HostArray, Member, PeerTransport
from dcnr_app.errors import DeadlineError, PeerError
from dcnr_app.ids import PNodeId
from tests.cluster.facts import device

A, B = PNodeId("a-0"), PNodeId("b-0")
LIMIT_S = 20.0


@given(
    st.floats(0.1, 200.0),
    st.floats(1e4, 1e10),
    st.lists(st.tuples(st.sampled_from([16, 1 << 20]), st.floats(0.0, 50.0)), max_size=8),
)
def test_the_undisturbed_messages_tell_the_link(
    round_trip_ms: float, bytes_per_s: float, disturbed: list[tuple[int, float]]
) -> None:
    undisturbed = [(16, 0.0), (1 << 20, 0.0)]
    samples = [
        ProbeSample(n, 5.0, 5.0 + round_trip_ms + (n - 16) / bytes_per_s * 1e3 + extra)
        for n, extra in [*disturbed, *undisturbed]
    ]
    found = estimate_link(samples)
    assert found is not None
    assert found.round_trip_ms == pytest.approx(round_trip_ms)
    assert found.bytes_per_s == pytest.approx(min(bytes_per_s, ((1 << 20) - 16) / 0.02e-3), rel=1e-3)


def test_one_size_of_message_tells_nothing_of_bandwidth() -> None:
    assert estimate_link([]) is None
    assert estimate_link([ProbeSample(16, 0.0, 1.0)] * 3) is None


def test_a_large_message_that_is_no_slower_claims_no_infinite_bandwidth() -> None:
    found = estimate_link([ProbeSample(16, 0.0, 3.0), ProbeSample(1 << 20, 0.0, 2.0)])
    assert found is not None
    assert 0 < found.bytes_per_s < 1e12


def test_links_of_machines_are_those_of_their_pnodes() -> None:
    devices = [device("a", machine="m"), device("b", machine="m"), device("c", machine="n")]
    found = links_between(devices, {("m", "n"): LinkEstimate(2.0, 3.0), ("m", "m"): LinkEstimate(0.1, 9.0)})
    assert {(link.source, link.target): link.round_trip_ms for link in found} == {
        ("a", "c"): 2.0,
        ("b", "c"): 2.0,
        ("a", "b"): 0.1,
        ("b", "a"): 0.1,
    }


class End:
    """A member that answers probes, if it is not deaf, and measures with its own."""

    def __init__(self, transport: PeerTransport, *, is_deaf: bool = False) -> None:
        self.transport = transport
        self.probe = LinkProbe(transport, lambda: perf_counter() * 1e3)
        self.is_deaf = is_deaf
        self.sizes: list[int] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def check(self, sender: PNodeId, message: AnyMessage, headers: Sequence[TensorHeader]) -> str:
        return ""

    def deliver(self, sender: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        if isinstance(message, ProbeReply):
            self.probe.take(sender, message)
        elif isinstance(message, Probe) and not self.is_deaf:
            self.sizes.append(len(message.payload))
            task = asyncio.ensure_future(self.transport.send(sender, answer_probe(message), {}))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def lost(self, peer: PNodeId, reason: str) -> None:
        self.probe.lost(peer, reason)


async def opened(ends: dict[PNodeId, End], prints: Mapping[PNodeId, str]) -> None:
    """Start both ends and let them know each other."""
    members = [
        Member(pnode=pnode, address=await end.transport.start(end), fingerprint=prints[pnode], role="worker")
        for pnode, end in ends.items()
    ]
    for end in ends.values():
        end.transport.set_members(members)


async def closed(ends: dict[PNodeId, End]) -> None:
    """Close both ends."""
    for end in ends.values():
        await end.transport.close()


def memory_ends(hub: MemoryHub, **kinds: bool) -> dict[PNodeId, End]:
    """Two ends in one process."""
    return {pnode: End(MemoryTransport(hub, pnode), **kinds) for pnode in (A, B)}


NO_PRINTS = {A: "", B: ""}


def test_a_slow_link_is_not_thought_faster_than_it_is() -> None:
    def delay_ms(sender: PNodeId, to: PNodeId, message: AnyMessage) -> float:
        return 4.0 + (len(message.payload) / 2e4 if isinstance(message, Probe) else 0.0)  # 20 MB/s

    async def test() -> None:
        ends = memory_ends(MemoryHub(delay_ms))
        await opened(ends, NO_PRINTS)
        found = await ends[A].probe.measure(B, LIMIT_S)
        await closed(ends)
        assert found.round_trip_ms >= 7.9
        assert found.bytes_per_s <= 2.5e7
        assert max(ends[B].sizes) >= 1 << 20, "small messages alone cannot tell 20 MB/s"

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


def test_a_very_slow_link_is_measured_with_few_bytes() -> None:
    def delay_ms(sender: PNodeId, to: PNodeId, message: AnyMessage) -> float:
        return len(message.payload) / 5e2 if isinstance(message, Probe) else 0.0  # 0.5 MB/s

    async def test() -> None:
        ends = memory_ends(MemoryHub(delay_ms))
        await opened(ends, NO_PRINTS)
        await ends[A].probe.measure(B, LIMIT_S)
        await closed(ends)
        assert sum(ends[B].sizes) < 100_000

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


def test_real_streams_are_measured() -> None:
    async def test() -> None:
        authority = ClusterAuthority.create("home")
        issued = {pnode: authority.issue(pnode, "home", "worker") for pnode in (A, B)}
        ends = {pnode: End(GrpcTransport(pnode, own, "home")) for pnode, own in issued.items()}
        await opened(ends, {pnode: fingerprint(own.cert_pem) for pnode, own in issued.items()})
        try:
            found = await ends[A].probe.measure(B, LIMIT_S)
        finally:
            await closed(ends)
        assert 0.0 < found.round_trip_ms < 1000.0
        assert 1e6 < found.bytes_per_s < 1e12

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


def test_a_peer_that_does_not_answer_or_goes_is_told() -> None:
    async def test() -> None:
        hub = MemoryHub()
        ends = memory_ends(hub, is_deaf=True)
        await opened(ends, NO_PRINTS)
        with pytest.raises(DeadlineError, match="could not be measured"):
            await ends[A].probe.measure(B, 0.05)
        waiting = asyncio.ensure_future(ends[A].probe.measure(B, LIMIT_S))
        while B not in hub.peers_of(A):
            await asyncio.sleep(0)
        hub.cut(A, B)
        with pytest.raises(PeerError):
            await waiting
        await closed(ends)

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


def test_a_link_is_measured_once_per_address(tmp_path: Path) -> None:
    async def test() -> None:
        ends = memory_ends(MemoryHub())
        await opened(ends, NO_PRINTS)
        kept = KeptLinks(tmp_path / "measured")
        first = await linked(ends[A].probe, kept, (A, B, "10.0.0.2:7000"), 5)
        n_probes = len(ends[B].sizes)
        assert await linked(ends[A].probe, kept, (A, B, "10.0.0.2:7000"), 6) == first
        assert len(ends[B].sizes) == n_probes
        await linked(ends[A].probe, kept, (A, B, "192.168.0.2:7000"), 7)
        assert len(ends[B].sizes) > n_probes
        assert kept.find(A, B, "10.0.0.2:7000") is None
        await closed(ends)

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


def test_kept_links_that_cannot_be_read_count_as_none(tmp_path: Path) -> None:
    kept = KeptLinks(tmp_path)
    link = KeptLink(source=A, target=B, address="x:1", estimate=LinkEstimate(1.0, 2.0), wall_ms=3)
    kept.keep(link)
    other = KeptLink(source=B, target=A, address="y:1", estimate=LinkEstimate(4.0, 5.0), wall_ms=3)
    kept.keep(other)
    assert (kept.find(A, B, "x:1"), kept.find(B, A, "y:1")) == (link.estimate, other.estimate)
    (tmp_path / "links.json").write_bytes(b"[{")
    assert kept.find(A, B, "x:1") is None
