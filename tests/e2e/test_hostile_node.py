"""Everything of `tests/hostile.py` against live worker processes while they train: the series is unharmed.

Each attack is under way while at least one step is committed. The short form is for every run, the long one
(`slow`) has floods of the size that took other servers down.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import grpc
import msgspec
import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dcnr_app.cluster.effects import AppendCommit, Trained
from dcnr_app.cluster.identity import ClusterAuthority, Credentials, dns_name
from dcnr_app.ids import PNodeId
from tests import hostile
from tests.cluster.local_run import SETTINGS, LocalRun, MemoryJournal
from tests.cluster.test_hostile_peers import tls_of
from tests.contracts.transport import run
from tests.e2e.test_worker_process import CLUSTER, Shop, annoy, how_it_ends

pytestmark = [pytest.mark.e2e, pytest.mark.chaos]

_MIB = 1 << 20
_LOG = logging.getLogger(__name__)
Attack = Callable[[hostile.Door], Awaitable[object]]


class Paced(MemoryJournal):
    """A step is committed only when the test allows it, so that one is under way during every attack."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = 1
        self.changed = threading.Condition()

    def commit(self, effect: AppendCommit) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.allowed >= effect.decision.step, timeout=60)
        super().commit(effect)

    def allow(self, n_steps: int) -> None:
        with self.changed:
            self.allowed += n_steps
            self.changed.notify_all()


class Siege:
    """A session under attack, and what its workers weighed meanwhile."""

    def __init__(self, n_steps: int) -> None:
        self.settings = msgspec.structs.replace(SETTINGS, steps=n_steps, validate_every=n_steps)
        self.journal = Paced()
        self.shop = Shop()
        self.shop.journal = self.journal  # type: ignore[assignment]
        self.shop.run = LocalRun(settings=self.settings, journal=self.journal)
        self.peak_bytes: dict[int, int] = {}
        self.first_bytes: dict[int, int] = {}
        self.report: list[str] = []

    def weigh(self) -> None:
        for process in self.shop.processes:
            rss = psutil.Process(process.pid).memory_info().rss
            self.first_bytes.setdefault(process.pid, rss)
            self.peak_bytes[process.pid] = max(self.peak_bytes.get(process.pid, 0), rss)

    @property
    def growth_bytes(self) -> int:
        return max(self.peak_bytes[pid] - first for pid, first in self.first_bytes.items())

    def doors(self) -> list[hostile.Door]:
        return [
            hostile.Door(worker.pnode, worker.address, self.shop.intruder) for worker in self.shop.processes
        ]

    async def until_step(self, step: int) -> None:
        while len(self.journal.decisions) < step:
            await asyncio.sleep(0.002)

    async def under(self, name: str, attack: Attack) -> None:
        """Let one step come while every worker is attacked."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        attacks = [asyncio.ensure_future(attack(door)) for door in self.doors()]
        await asyncio.sleep(0.05)  # the attack has begun; training needs no such wait
        self.journal.allow(1)
        async with asyncio.timeout(20):
            await self.until_step(self.journal.allowed)
        step_s = loop.time() - begin - 0.05
        while any(not each.done() for each in attacks):
            self.weigh()
            await asyncio.wait(attacks, timeout=0.05)
        self.weigh()
        ends = " | ".join([str(await each) for each in attacks])
        took_s = loop.time() - begin
        self.report.append(f"{name}: step in {step_s:.2f} s, over in {took_s:.1f} s: {ends}")


@asynccontextmanager
async def besieged(n_steps: int) -> AsyncIterator[tuple[Siege, asyncio.Task[Trained]]]:
    siege = Siege(n_steps)
    await siege.shop.open()
    try:
        async with asyncio.TaskGroup() as tasks:
            session = tasks.create_task(siege.shop.train())
            await siege.until_step(1)
            siege.weigh()
            try:
                yield siege, session
            finally:
                siege.journal.allow(n_steps)
    finally:
        await siege.shop.close()


async def half_open(door: hostile.Door, n: int) -> str:
    """Handshakes that begin and do not go on: they are ended, and meanwhile a member gets in."""
    async with hostile.half_open(door, n) as readers:
        begin = asyncio.get_running_loop().time()
        async with hostile.wire(door):
            joined_s = asyncio.get_running_loop().time() - begin
        assert joined_s < 2.0
        held = await asyncio.gather(*(hostile.how_long_held(reader, 15) for reader in readers))
        assert max(held) < 10
        return f"{len(readers)} handshakes held up to {max(held):.1f} s, a member in {joined_s:.2f} s"


async def slow_handshake(door: hostile.Door) -> str:
    held_s = await hostile.slow_handshake(door, 15)
    assert held_s < 10
    return f"ended after {held_s:.1f} s"


def attacks(size: int) -> Mapping[str, Attack]:
    """By name; `size` is how often, in hundreds."""
    n = 100 * size
    return {
        "garbage": lambda door: hostile.garbage(door, min(n, 500)),
        "half-open handshakes": lambda door: half_open(door, min(n, 500)),
        "slow handshake": slow_handshake,
        "PING flood": lambda door: hostile.pings(door, 10 * n),
        "SETTINGS flood": lambda door: hostile.settings_frames(door, 10 * n),
        "rapid reset": lambda door: hostile.rapid_resets(door, 5 * n),
        "made-you-reset": lambda door: hostile.made_resets(door, 5 * n),
        "empty DATA": lambda door: hostile.empty_data(door, 10 * n),
        "WINDOW_UPDATE flood": lambda door: hostile.window_updates(door, 10 * n),
        "PRIORITY flood": lambda door: hostile.priorities(door, 10 * n),
        "CONTINUATION flood": lambda door: hostile.continuations(door, 5 * n),
        "header list": lambda door: hostile.header_list(door, min(1000 * n, 500_000)),
        "many streams": lambda door: hostile.many_streams(door, n),
        "unread body": lambda door: hostile.unread_body(door, 10_000 * n),
        "zero-window reader": lambda door: hostile.zero_window(door, n),
    }


def check_unharmed(siege: Siege) -> None:
    """The series is that of nobody's attack, and no worker grew much."""
    alone = LocalRun(settings=siege.settings)
    asyncio.run(alone.run())
    steps = range(1, siege.settings.steps + 1)
    assert [siege.journal.decisions[s].loss for s in steps] == [
        alone.journal.decisions[s].loss for s in steps
    ]
    _LOG.info("worst growth %.1f MiB\n%s", siege.growth_bytes / _MIB, "\n".join(siege.report))
    assert siege.growth_bytes <= 256 * _MIB
    assert not siege.shop.run.recoveries


def lay_siege(size: int) -> None:
    corpus = attacks(size)
    found: list[Siege] = []

    async def test() -> None:
        async with besieged(len(corpus) + 4) as (siege, session):
            found.append(siege)
            for name, attack in corpus.items():
                await siege.under(name, attack)
            siege.journal.allow(1)
            for worker in siege.shop.processes:
                await annoy(siege.shop, worker)
            siege.journal.allow(10)
            trained = await session
            assert not trained.stopped

    run_long(test)
    check_unharmed(found[0])


def run_long(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(280):
            await test()

    asyncio.run(limited())


@pytest.mark.timeout(120)
def test_training_is_unharmed_by_the_hostile_corpus() -> None:
    lay_siege(2)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_training_is_unharmed_by_the_hostile_corpus_in_full_size() -> None:
    lay_siege(100)


def test_every_refused_stranger_is_in_the_log_with_a_reason(capfd: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        async with besieged(3) as (siege, session):
            worker, authority = siege.shop.processes[0], siege.shop.authority
            (door, *_) = siege.doors()
            other = ClusterAuthority.create(CLUSTER).issue(PNodeId("intruder"), CLUSTER, "worker")
            await how_it_ends(worker, None)
            await how_it_ends(worker, grpc.ssl_channel_credentials(authority.ca_pem))
            await how_it_ends(worker, tls_of(other, authority.ca_pem))
            await how_it_ends(worker, tls_of(authority.issue(PNodeId("stranger"), CLUSTER, "worker")))
            await how_it_ends(worker, tls_of(rogue_branch(authority)))
            await half_open(door, 30)
            siege.journal.allow(9)
            await session

    run(test)
    _, told = capfd.readouterr()
    for reason in (
        "WRONG_VERSION_NUMBER",
        "PEER_DID_NOT_RETURN_A_CERTIFICATE",
        "CERTIFICATE_VERIFY_FAILED",
        "stranger is not a member of this cluster",
        "intruder shows another certificate than the one it was admitted with",
        "Handshake timed out",
    ):
        assert reason in told
    assert "handshaker.cc" not in told
    assert told.count("Handshake timed out") + sum(map(int, re.findall(r"refused n=(\d+)", told))) >= 30


def rogue_branch(authority: ClusterAuthority) -> Credentials:
    """A leaf for an admitted name, from an intermediate that the cluster's own CA has signed as CA:TRUE."""
    ca = x509.load_pem_x509_certificate(authority.ca_pem)
    ca_key = serialization.load_pem_private_key(authority.key_pem, None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    middle = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "middle")])
    leaf = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "leaf")])
    pems = []
    for subject, issuer, key, signer, is_ca in (
        (middle, ca.subject, keys[0], ca_key, True),
        (leaf, middle, keys[1], keys[0], False),
    ):
        names = x509.SubjectAlternativeName(
            [
                x509.DNSName(dns_name(PNodeId("intruder"))),
                x509.UniformResourceIdentifier(f"dcnr://{CLUSTER}/worker"),
            ]
        )
        pems.append(
            x509.CertificateBuilder(
                issuer, subject, key.public_key(), x509.random_serial_number(),
                datetime(1970, 1, 1, tzinfo=UTC), datetime(2049, 1, 1, tzinfo=UTC),
            )
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(names, critical=False)
            .sign(signer, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )  # fmt: skip
    key_pem = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Credentials(cert_pem=pems[1] + pems[0], key_pem=key_pem, ca_pem=authority.ca_pem)


def test_leaf_from_an_intermediate_authority_is_a_stranger() -> None:
    """BoringSSL lets it through although the cluster's CA says path length 0: the membership does not."""

    async def test() -> None:
        async with besieged(3) as (siege, session):
            for worker in siege.shop.processes:
                rogue = rogue_branch(siege.shop.authority)
                code, text = await how_it_ends(worker, tls_of(rogue))
                assert code == "PERMISSION_DENIED"
                assert "another certificate than the one it was admitted with" in text
            siege.journal.allow(9)
            await session

    run(test)


def test_recorded_connection_that_is_replayed_gets_nowhere() -> None:
    """The bytes of a member's whole conversation, sent again: TLS keys differ, so nothing is delivered."""

    async def test() -> None:
        from tests.chaos_proxy import ChaosProxy

        recorded: list[bytes] = []

        def record(data: bytes) -> bytes:
            recorded.append(data)
            return data

        async with besieged(3) as (siege, session):
            worker = siege.shop.processes[0]
            async with ChaosProxy(worker.address) as proxy:
                proxy.set("up", damage=record)
                door = hostile.Door(worker.pnode, proxy.address, siege.shop.intruder)
                assert "goaway" in await hostile.pings(door, 500)
            assert sum(map(len, recorded)) > 5_000
            host, port = hostile.Door(worker.pnode, worker.address, siege.shop.intruder).place
            for _ in range(20):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(b"".join(recorded))
                assert await hostile.how_long_held(reader, 8) < 7
                writer.transport.abort()
            siege.journal.allow(9)
            await session

    run(test)
