"""Both sides of a pairing as pure values, without a network: for tests that stand between them."""

from __future__ import annotations

import hashlib

import msgspec

from dcnr_app.cluster import admission, pairing
from dcnr_app.cluster.admission import Attempt, Keys
from dcnr_app.cluster.builds import this_build
from dcnr_app.cluster.identity import ClusterAuthority
from dcnr_app.cluster.keys import new_key_pem, public_pem
from dcnr_app.cluster.pairing import Pairing
from dcnr_app.cluster.pairing_messages import Begin, ClusterOffer, JoinRequest, Offered

CLUSTER = "c0ffee"


def nonce(text: str) -> bytes:
    """32 bytes that stand for fresh randomness."""
    return hashlib.sha256(text.encode()).digest()


class Worker:
    """A machine that joins."""

    def __init__(self, name: str = "worker", n_pnodes: int = 1) -> None:
        self.keys = Keys(new_key_pem(), tuple(new_key_pem() for _ in range(n_pnodes)))
        facts = JoinRequest(public_key="", name=name, pnode_keys=(), build=this_build())
        self.request = admission.make_request(self.keys, facts)
        self.nonce = nonce(f"nonce of {name}")

    def begin(self) -> Begin:
        return admission.begin(self.request, self.nonce, "digits")

    def attempt(self, offered: Offered) -> Attempt:
        return admission.attempt(self.keys, self.request, self.nonce, offered)


class Cluster:
    """An orchestrator."""

    def __init__(self, name: str = "orchestrator") -> None:
        self.key_pem = new_key_pem()
        self.authority = ClusterAuthority.create(CLUSTER)
        self.offer = msgspec.json.encode(
            ClusterOffer(
                public_key=public_pem(self.key_pem).decode(),
                name=name,
                cluster=CLUSTER,
                cluster_name="home",
                ca_pem=self.authority.ca_pem.decode(),
                build=this_build(),
            )
        )
        self.nonce = nonce(f"nonce of {name}")

    def opened(self, begin: Begin, now_ms: float = 0.0) -> Pairing:
        return pairing.opened("attempt", begin, "192.0.2.1", self.offer, self.nonce, now_ms)

    def offered(self) -> Offered:
        return Offered(pairing="attempt", offer=self.offer, nonce=self.nonce)
