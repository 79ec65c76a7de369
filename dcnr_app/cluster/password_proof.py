"""Proof that both ends know the same code, without sending it: SPAKE2. Knows no code's life and no network.

The identities are bound to the transcript of the joining, and so to both machines' keys and the cluster's
authority: somebody in the middle, who has other keys, gets another key out of it even with the right code,
and each run tests one guess. Construction: Abdalla and Pointcheval, "Simple Password-Based Encrypted Key
Exchange Protocols"; key confirmation by a MAC in each direction, the joining machine's first.
"""

from __future__ import annotations

import hashlib
import hmac

from spake2 import SPAKE2_A, SPAKE2_B, SPAKEError
from spake2.ed25519_basic import NotOnCurve

from dcnr_app.errors import RefusedError


class PasswordProof:
    """One end of one run. `share` is sent to the other end; `finish` takes the other's."""

    def __init__(self, password: str, transcript: bytes, *, is_joining: bool) -> None:
        make = SPAKE2_A if is_joining else SPAKE2_B
        self._spake = make(
            hashlib.sha256(b"dcnr code\n" + password.encode()).digest(),
            idA=b"dcnr joining\n" + transcript,
            idB=b"dcnr cluster\n" + transcript,
        )
        self._is_joining = is_joining
        self._key = b""
        self.share: bytes = self._spake.start()

    def finish(self, share: bytes) -> None:
        """Take the other end's share. Raises RefusedError if it is malformed."""
        try:
            self._key = self._spake.finish(share)
        except (SPAKEError, ValueError, NotOnCurve) as error:
            raise RefusedError("the proof of the code is malformed", why=type(error).__name__) from error

    def own_proof(self) -> bytes:
        """What shows the other end that this one knows the code."""
        return self._mac(is_joining=self._is_joining)

    def is_proven(self, proof: bytes) -> bool:
        """Whether the other end knows the code."""
        return bool(self._key) and hmac.compare_digest(proof, self._mac(is_joining=not self._is_joining))

    def _mac(self, *, is_joining: bool) -> bytes:
        label = b"joining machine knows" if is_joining else b"cluster knows"
        return hmac.digest(self._key, label, "sha256")
