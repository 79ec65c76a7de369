"""Real worker processes under a real orchestrator, with strangers and a hostile member at their door."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import msgspec
import numpy as np
import psutil
import pytest

from dcnr_app.cluster.codec import encode, frames
from dcnr_app.cluster.effects import AppendCommit, Trained
from dcnr_app.cluster.greeting import hello
from dcnr_app.cluster.grpc_options import SERVICE, client_options
from dcnr_app.cluster.grpc_transport import GrpcTransport
from dcnr_app.cluster.identity import ClusterAuthority, Credentials, fingerprint
from dcnr_app.cluster.messages import Address, AnyMessage, Hello, Hop, TensorHeader
from dcnr_app.cluster.orchestrator_seams import Roster
from dcnr_app.cluster.pnode import role_of
from dcnr_app.cluster.processes import Bootstrap, WorkerProcess, start_worker
from dcnr_app.cluster.sleeping import LEASE_MS
from dcnr_app.cluster.transport import HostArray, Member, Receiver
from dcnr_app.errors import UnreachableError
from dcnr_app.ids import ORCHESTRATOR, PNodeId, SessionId
from dcnr_app.settings import child_environment
from tests.cluster.local_run import SETTINGS, LocalRun, MemoryJournal
from tests.cluster.test_hostile_peers import BAD_FRAMES, RawStream, tls_of
from tests.contracts.transport import run
from tests.e2e.place import is_alive

pytestmark = pytest.mark.e2e

CLUSTER = "local"
INTRUDER, STRANGER = PNodeId("intruder"), PNodeId("stranger")


class Gated(MemoryJournal):
    """Training waits at step 3 until the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def commit(self, effect: AppendCommit) -> None:
        if effect.decision.step == 3:
            assert self.gate.wait(20)
        super().commit(effect)


class Shop:
    """An orchestrator that the test holds, and the worker processes of its session."""

    def __init__(self) -> None:
        self.journal = Gated()
        self.run = LocalRun(
            settings=msgspec.structs.replace(SETTINGS, steps=6, validate_every=6), journal=self.journal
        )
        self.authority = ClusterAuthority.create(CLUSTER)
        own = self.authority.issue(ORCHESTRATOR, CLUSTER, role_of(ORCHESTRATOR))
        self.intruder = self.authority.issue(INTRUDER, CLUSTER, "worker")
        self.transport = GrpcTransport(ORCHESTRATOR, own, CLUSTER)
        self.addresses = [Address(ORCHESTRATOR, "", fingerprint(own.cert_pem))]
        self.processes: list[WorkerProcess] = []
        self.heard: list[tuple[PNodeId, AnyMessage]] = []

    # ---- the transport's Receiver: the orchestrator, and who spoke

    def check(self, sender: PNodeId, message: AnyMessage, headers: Sequence[TensorHeader]) -> str:
        return self.run.orchestrator.check(sender, message, headers)

    def deliver(self, sender: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        self.heard.append((sender, message))
        self.run.orchestrator.deliver(sender, message, tensors)

    def lost(self, peer: PNodeId, reason: str) -> None:
        self.run.orchestrator.lost(peer, reason)

    # ---- running

    async def open(self) -> None:
        """Start everything; the intruder is a member that has no part in the plan."""
        address = await self.transport.start(self)
        own = self.addresses.pop().fingerprint
        self.addresses.append(Address(ORCHESTRATOR, address, own))
        for pnode in self.run.plan.pnodes:
            issued = self.authority.issue(pnode, CLUSTER, "worker")
            process = await start_worker(_bootstrap(pnode, issued, own), child_environment())
            self.processes.append(process)
            self.addresses.append(Address(pnode, process.address, fingerprint(issued.cert_pem)))
        self.addresses.append(Address(INTRUDER, "127.0.0.1:1", fingerprint(self.intruder.cert_pem)))
        self.transport.set_members(
            [
                Member(pnode=a.pnode, address=a.address, fingerprint=a.fingerprint, role=role_of(a.pnode))
                for a in self.addresses
            ]
        )

    async def train(self) -> Trained:
        async def nothing(trained: Trained) -> None:
            del trained

        return await self.run.orchestrator.run(self, self.addresses, nothing)

    # ---- the orchestrator's Crew, which here looks after nothing

    async def start(self, receiver: Receiver, roster: Roster) -> tuple[Address, ...]:
        raise NotImplementedError("`open` starts everything")

    def evict(self, pnode: PNodeId, reason: str) -> None:
        del pnode, reason

    def drained(self, pnode: PNodeId) -> None:
        del pnode

    async def how_lost(self, within_s: float) -> tuple[PNodeId, str] | None:
        del within_s
        return None

    # ---- how far it is

    async def until_gate(self) -> None:
        """Wait for step 2: the next one waits at the gate."""
        while len(self.run.steps) < 2:
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        for process in self.processes:
            await process.close()
        await self.transport.close()


def _bootstrap(pnode: PNodeId, issued: Credentials, orchestrator: str) -> Bootstrap:
    return Bootstrap(
        pnode=pnode,
        cluster=CLUSTER,
        certificate_pem=issued.cert_pem.decode(),
        key_pem=issued.key_pem.decode(),
        authority_pem=issued.ca_pem.decode(),
        orchestrator_fingerprint=orchestrator,
        threads=1,
    )


@asynccontextmanager
async def training() -> AsyncIterator[tuple[Shop, asyncio.Task[Trained]]]:
    """Two workers in the middle of step 3 of 6."""
    shop = Shop()
    await shop.open()
    try:
        async with asyncio.TaskGroup() as tasks:
            session = tasks.create_task(shop.train())
            await shop.until_gate()
            try:
                yield shop, session
            finally:
                shop.journal.gate.set()
    finally:
        await shop.close()


@asynccontextmanager
async def stream_to(worker: WorkerProcess, tls: grpc.ChannelCredentials | None) -> AsyncIterator[RawStream]:
    """A stream as any gRPC client can open it."""
    options = client_options(worker.pnode, "bulk")
    if tls is None:
        channel = grpc.aio.insecure_channel(worker.address, options)
    else:
        channel = grpc.aio.secure_channel(worker.address, tls, options)
    async with channel:
        call = channel.stream_stream(f"/{SERVICE}/bulk")()
        try:
            yield RawStream(call)
        finally:
            call.cancel()


async def how_it_ends(worker: WorkerProcess, tls: grpc.ChannelCredentials | None) -> tuple[str, str]:
    """Status and text with which the worker ends a stream before it has read anything from it.

    Nothing is written: a write that meets the refusal would hide the status behind one of the library's own.
    """
    async with stream_to(worker, tls) as stream:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while await stream.call.read() is not grpc.aio.EOF:
                pass
    return caught.value.code().name, caught.value.details() or ""


def strange_hop() -> Hop:
    """A hop as the plan could have it, but not from the intruder, and not with this tensor."""
    return Hop(
        session=SessionId("s"), generation=1, request=1, phase="train", step=3, microbatch=0, direction="F",
        segment=0, slot="embed:0",
    )  # fmt: skip


async def annoy(shop: Shop, worker: WorkerProcess) -> None:
    """Everything that strangers and the intruder can try; each is answered with its reason."""
    authority, ca = shop.authority, shop.authority.ca_pem
    other = ClusterAuthority.create(CLUSTER).issue(ORCHESTRATOR, CLUSTER, "orchestrator")
    assert (await how_it_ends(worker, None))[0] == "UNAVAILABLE"
    assert (await how_it_ends(worker, grpc.ssl_channel_credentials(ca)))[0] == "UNAVAILABLE"
    assert (await how_it_ends(worker, tls_of(other, ca)))[0] == "UNAVAILABLE"
    code, text = await how_it_ends(worker, tls_of(authority.issue(STRANGER, CLUSTER, "worker")))
    assert code == "PERMISSION_DENIED"
    assert "stranger is not a member of this cluster" in text
    shaped = encode(1, strange_hop(), {"embed:0": np.zeros((2, 16, 16), np.float32)})
    # Here the plan is asked first, and it has no such tensor.
    known = {reason: frame for reason, frame in BAD_FRAMES.items() if reason != "more than its headers"}
    bad = {**known, "should be float32 [1, 16, 16]": b"".join(frames(shaped))}
    for reason, frame in bad.items():
        async with stream_to(worker, tls_of(shop.intruder)) as stream:
            await stream.write(hello(INTRUDER))
            assert isinstance(await stream.reply(), Hello)
            await stream.put(frame)
            await stream.refused(reason)


def test_strangers_are_refused_and_a_hostile_member_is_answered_while_training_goes_on() -> None:
    losses: list[float] = []

    async def test() -> None:
        async with training() as (shop, session):
            for worker in shop.processes:
                await annoy(shop, worker)
            assert not session.done()
            shop.journal.gate.set()
            assert await session == Trained(6, stopped=False)
        losses.extend(shop.journal.decisions[step].loss for step in range(1, 7))

    run(test)
    alone = LocalRun(settings=msgspec.structs.replace(SETTINGS, steps=6, validate_every=6))
    asyncio.run(alone.run())
    assert losses == [alone.journal.decisions[step].loss for step in range(1, 7)]


def test_workers_end_by_themselves_when_the_session_is_over_and_say_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def test() -> None:
        async with training() as (shop, session):
            shop.journal.gate.set()
            await session
            async with asyncio.timeout(2):
                for process in shop.processes:
                    await process.ended()
            assert [process.how_it_ended()[-17:] for process in shop.processes] == ["ended with code 0"] * 2

    run(test)
    assert capfd.readouterr() == ("", "")


def test_workers_whose_pipe_closes_end_within_two_seconds_and_say_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def test() -> None:
        shop = Shop()
        await shop.open()
        workers = [psutil.Process(process.pid) for process in shop.processes]
        async with asyncio.timeout(2):
            for process in shop.processes:
                process.hang_up()
            for process in shop.processes:
                await process.ended()
        assert not any(is_alive(worker) for worker in workers)
        await shop.close()

    run(test)
    assert capfd.readouterr() == ("", "")


def test_a_worker_that_was_given_up_while_it_stood_still_says_nothing_more_when_it_goes_on() -> None:
    async def test() -> None:
        shop = Shop()
        await shop.open()
        try:
            session = asyncio.ensure_future(shop.train())
            await shop.until_gate()
            sleeper = shop.processes[0]
            psutil.Process(sleeper.pid).suspend()
            shop.journal.gate.set()
            with pytest.raises(UnreachableError, match=sleeper.pnode):
                await session
            shop.heard.clear()
            # The lease is over by then at the latest, by its clocks too.
            await asyncio.sleep(LEASE_MS / 1000.0)
            psutil.Process(sleeper.pid).resume()
            async with asyncio.timeout(5):
                await sleeper.ended()
            assert [message for sender, message in shop.heard if sender == sleeper.pnode] == []
        finally:
            await shop.close()

    run(test)
