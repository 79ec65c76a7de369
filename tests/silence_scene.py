"""Two PNodes whose connections go through chaos proxies, and how soon each notices that they broke."""

from __future__ import annotations

import asyncio
from typing import Literal, NamedTuple

import numpy as np

from dcnr_app.cluster.grpc_transport import GrpcTransport
from dcnr_app.cluster.identity import ClusterAuthority, fingerprint
from dcnr_app.cluster.transport import Member
from tests.chaos_proxy import ChaosProxy
from tests.contracts.transport import A, B, Box, applied, hop

Fault = Literal["cut", "both ways", "a to b", "b to a"]
FAULTS: tuple[Fault, ...] = ("cut", "both ways", "a to b", "b to a")
LIMIT_S: dict[Fault, float] = {"cut": 1.0, "both ways": 5.0, "a to b": 5.0, "b to a": 5.0}


class Noticed(NamedTuple):
    """Seconds from the fault to the loss, at both ends."""

    at_a: float
    at_b: float


async def notice(fault: Fault, wait_s: float = 0.0) -> Noticed:
    """One trial: a fresh pair that has talked both ways over both channels, `wait_s` seconds of rest, then
    the fault."""
    authority = ClusterAuthority.create("home")
    credentials = {pnode: authority.issue(pnode, "home", "worker") for pnode in (A, B)}
    boxes = {A: Box(), B: Box()}
    ends = {pnode: GrpcTransport(pnode, credentials[pnode], "home") for pnode in (A, B)}
    addresses = {pnode: await ends[pnode].start(boxes[pnode]) for pnode in (A, B)}
    async with ChaosProxy(addresses[A]) as to_a, ChaosProxy(addresses[B]) as to_b:
        for pnode, other, proxy in ((A, B, to_b), (B, A, to_a)):
            print_ = fingerprint(credentials[other].cert_pem)
            ends[pnode].set_members(
                [Member(pnode=other, address=proxy.address, fingerprint=print_, role="worker")]
            )
        for pnode, other in ((A, B), (B, A)):
            await ends[pnode].send(other, applied(1), {})
            await ends[pnode].send(other, hop(1), {"x": np.ones(9, np.float32)})
            await boxes[other].until_messages(2)
        await asyncio.sleep(wait_s)
        begin = asyncio.get_running_loop().time()
        _break(fault, to_a, to_b)
        times = await asyncio.gather(*(_lost_after(boxes[pnode], begin) for pnode in (A, B)))
        # What is still open hangs behind the proxies: end them before the transports, which would wait.
        to_a.cut_all()
        to_b.cut_all()
        for end in ends.values():
            await end.close()
    return Noticed(*times)


def _break(fault: Fault, to_a: ChaosProxy, to_b: ChaosProxy) -> None:
    match fault:
        case "cut":
            to_a.cut_all()
            to_b.cut_all()
        case "both ways":
            to_a.set(is_black=True)
            to_b.set(is_black=True)
        case "a to b":
            to_b.set("up", is_black=True)
            to_a.set("down", is_black=True)
        case "b to a":
            to_b.set("down", is_black=True)
            to_a.set("up", is_black=True)


async def _lost_after(box: Box, begin: float) -> float:
    async with asyncio.timeout(30):
        await box.until_lost()
    assert len(box.losses) == 1
    return asyncio.get_running_loop().time() - begin
