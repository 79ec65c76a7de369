"""SPAKE2 with key confirmation: equal passwords and transcripts prove each other, nothing else does."""

from __future__ import annotations

import pytest

from dcnr_app.cluster.password_proof import PasswordProof
from dcnr_app.errors import RefusedError

T1, T2 = b"1" * 32, b"2" * 32


def exchanged(joining: PasswordProof, cluster: PasswordProof) -> tuple[bool, bool]:
    """Whether the cluster believes the joining machine, and the other way round."""
    joining.finish(cluster.share)
    cluster.finish(joining.share)
    return cluster.is_proven(joining.own_proof()), joining.is_proven(cluster.own_proof())


def pair(one: str, other: str, first: bytes = T1, second: bytes = T1) -> tuple[PasswordProof, PasswordProof]:
    return PasswordProof(one, first, is_joining=True), PasswordProof(other, second, is_joining=False)


def test_same_code_and_transcript_prove_each_other() -> None:
    assert exchanged(*pair("123-456", "123-456")) == (True, True)


def test_other_code_or_other_transcript_proves_nothing() -> None:
    assert exchanged(*pair("123-456", "123-457")) == (False, False)
    assert exchanged(*pair("123-456", "123-456", T1, T2)) == (False, False)


def test_proof_sent_back_to_its_sender_proves_nothing() -> None:
    joining, cluster = pair("123-456", "123-456")
    exchanged(joining, cluster)
    assert not joining.is_proven(joining.own_proof())
    assert not cluster.is_proven(cluster.own_proof())


def test_nothing_is_proven_before_shares_were_exchanged() -> None:
    joining, cluster = pair("123-456", "123-456")
    assert not cluster.is_proven(b"")
    assert not joining.is_proven(cluster.own_proof())


def test_share_sent_back_to_its_sender_is_refused() -> None:
    joining, _ = pair("123-456", "123-456")
    with pytest.raises(RefusedError, match="malformed"):
        joining.finish(joining.share)
    joining, _ = pair("123-456", "123-456")
    with pytest.raises(RefusedError, match="malformed"):
        joining.finish(b"B" + joining.share[1:])


def test_shares_are_fresh_and_hold_nothing_of_the_code() -> None:
    shares = {PasswordProof("123-456", T1, is_joining=True).share for _ in range(8)}
    assert len(shares) == 8
    assert not any(b"123" in share for share in shares)
