"""Joining a cluster from this machine: by digits that people compare, by a typed code, by an invite. IO."""

from __future__ import annotations

import secrets

import msgspec

from dcnr_app.cluster import admission, joining_codes
from dcnr_app.cluster.admission import Admission, Attempt, Keys
from dcnr_app.cluster.builds import Build, refuse_mismatch
from dcnr_app.cluster.cluster_files import ClusterFiles, OwnCluster, PNodeSecret
from dcnr_app.cluster.front_door_client import FrontDoorClient, find_front_door
from dcnr_app.cluster.joining_talk import DigitsTalk, compare, progress_of, prove, say_goodbye
from dcnr_app.cluster.keys import new_key_pem
from dcnr_app.cluster.machine import Machine
from dcnr_app.cluster.pairing import NONCE_BYTES
from dcnr_app.cluster.pairing_messages import (
    Info,
    JoinRequest,
    Method,
    ShowProof,
    ShowShare,
)
from dcnr_app.cluster.password_proof import PasswordProof
from dcnr_app.cluster.registrar import refuse_second_cluster
from dcnr_app.errors import DcnrError, RefusedError
from dcnr_app.settings import Home


class Target(msgspec.Struct, frozen=True):
    """A machine's addresses, best first, and the port of its front door."""

    hosts: tuple[str, ...]
    port: int


class Joiner(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine says of itself. `addresses` are where its agent will listen (`host:port`), if it is
    known yet."""

    machine: Machine
    build: Build
    n_pnodes: int
    device: str = ""
    addresses: tuple[str, ...] = ()


async def request_to_join(target: Target, joiner: Joiner, talk: DigitsTalk) -> Admission:
    """Join by digits; returns when admitted. Raises UnreachableError, PeerError, or RefusedError when the
    builds do not fit, the digits are said to differ, the other side rejects, or it takes too long. When this
    is cancelled, the other side is told."""
    async with await _reach(target, joiner) as client:
        attempt = await _attempt(client, joiner, "digits")
        is_over = False
        try:
            standing = await compare(client, attempt, talk)
            is_over = True
            accepted = admission.accept(attempt, standing)
        except RefusedError:
            is_over = True
            raise
        finally:
            if not is_over:
                await say_goodbye(client, attempt)
        talk.tell(progress_of("admitted", attempt, client))
        return accepted


async def join_with_code(target: Target, code: str, joiner: Joiner) -> Admission:
    """Join with a typed code. Raises UserError if it is no code, RefusedError if it is wrong, spent or
    expired, UnreachableError, PeerError."""
    text = joining_codes.read_code(code)
    return await _join_with_secret(target, joiner, joining_codes.code_finder(text), text, "")


async def join_with_invite(link: str, joiner: Joiner) -> Admission:
    """Join with an invite link. Raises UserError if it is none, RefusedError if another cluster answers than
    the one that it is from or if it is spent or expired, UnreachableError, PeerError."""
    invite = joining_codes.read_link(link)
    target = Target(invite.hosts, invite.port)
    finder = joining_codes.invite_finder(invite.token)
    return await _join_with_secret(target, joiner, finder, invite.token, invite.ca_fingerprint)


def save_admission(home: Home, accepted: Admission) -> OwnCluster:
    """Make this machine a worker of the cluster that admitted it. Raises RefusedError if it is in another
    one, StoreError."""
    files = ClusterFiles(home)
    before = files.load_cluster()
    if before is not None and (before.cluster, before.role) != (accepted.offer.cluster, "worker"):
        refuse_second_cluster(files)
    own = OwnCluster(
        cluster=accepted.offer.cluster,
        name=accepted.offer.cluster_name,
        machine=accepted.machine,
        role="worker",
        agent=accepted.agent,
        pnodes=tuple(PNodeSecret(pnode=pnode, credentials=secret) for pnode, secret in accepted.pnodes),
        orchestrator=accepted.grant.orchestrator,
        orchestrator_fingerprint=accepted.grant.orchestrator_fingerprint,
    )
    files.save_members(accepted.grant.membership)
    files.save_cluster(own)
    return own


async def _reach(target: Target, joiner: Joiner) -> FrontDoorClient:
    client, info = await find_front_door(target.hosts, target.port)
    try:
        _refuse_wrong_door(info, client.place, joiner.machine)
        refuse_mismatch(joiner.build, info.build)
    except DcnrError:
        await client.close()
        raise
    return client


def _refuse_wrong_door(info: Info, place: str, machine: Machine) -> None:
    if info.machine == machine.id:
        raise RefusedError(f"{place} is this machine itself", fix="give the address of the orchestrator")
    if info.role == "worker":
        raise RefusedError(
            f"{info.name} is a worker of {info.cluster_name!r} and admits no machines",
            where=place,
            fix="join at that cluster's orchestrator: dcnr-app discover",
        )
    if info.role == "none":
        raise RefusedError(
            f"{info.name} is in no cluster",
            where=place,
            fix="start one there first: dcnr-app up --role orchestrator",
        )


async def _attempt(client: FrontDoorClient, joiner: Joiner, method: Method) -> Attempt:
    keys = Keys(joiner.machine.key_pem, tuple(new_key_pem() for _ in range(joiner.n_pnodes)))
    facts = JoinRequest(
        public_key="",
        name=joiner.machine.name,
        pnode_keys=(),
        build=joiner.build,
        device=joiner.device,
        addresses=joiner.addresses,
    )
    request, nonce = admission.make_request(keys, facts), secrets.token_bytes(NONCE_BYTES)
    offered = await client.begin(admission.begin(request, nonce, method))
    return admission.attempt(keys, request, nonce, offered)


async def _join_with_secret(
    target: Target, joiner: Joiner, finder: str, secret: str, ca_fingerprint: str
) -> Admission:
    async with await _reach(target, joiner) as client:
        attempt = await _attempt(client, joiner, "code")
        if ca_fingerprint:
            admission.check_authority(attempt.offer, ca_fingerprint)
        await client.reveal(admission.reveal(attempt))
        proof = PasswordProof(secret, attempt.transcript, is_joining=True)
        share = await client.share(ShowShare(pairing=attempt.pairing, finder=finder, share=proof.share))
        proof.finish(share.share)
        standing = await prove(client, ShowProof(pairing=attempt.pairing, proof=proof.own_proof()))
        if standing.step != "granted" or not proof.is_proven(standing.proof):
            raise RefusedError(
                "the other side does not know the code",
                where=client.place,
                why="it may not be the machine that showed the code",
                fix=joining_codes.GET_A_NEW_ONE,
            )
        return admission.accept(attempt, standing)
