"""What two machines must agree on before one may hold weights for the other: versions and numerics. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from dcnr_app import __version__
from dcnr_app.cluster.codec import known_tags
from dcnr_app.cluster.messages import PROTOCOL_VERSION
from dcnr_app.cluster.plain_text import plain_text
from dcnr_app.errors import RefusedError

NUMERICS_VERSION: Final = 1
"""Raised when this app's own laws of computation change, so that equal device classes would no longer mean
equal bits: orders of summation, random counters, the optimizer's arithmetic, wire precision."""
NEEDED_DTYPES: Final = ("float32",)


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """One machine's program: version, range of protocols, digest of the messages that it knows, numerics, and
    the dtypes that its devices compute in. `device_class` is empty where it was not asked for."""

    version: str
    protocol_min: int
    protocol_max: int
    messages: str
    numerics: int
    dtypes: tuple[str, ...]
    device_class: str = ""


def this_build(device_class: str = "", dtypes: Sequence[str] = NEEDED_DTYPES) -> Build:
    """How this program introduces itself."""
    return Build(
        version=__version__,
        protocol_min=PROTOCOL_VERSION,
        protocol_max=PROTOCOL_VERSION,
        messages=hashlib.sha256("\n".join(known_tags()).encode()).hexdigest()[:16],
        numerics=NUMERICS_VERSION,
        dtypes=tuple(dtypes),
        device_class=device_class,
    )


def refuse_mismatch(joining: Build, cluster: Build) -> None:
    """Raise RefusedError if these builds cannot work together; its `fix` is the command, for the joining
    machine, that brings it to the cluster's version."""
    missing = sorted(set(cluster.dtypes) & set(NEEDED_DTYPES) - set(joining.dtypes))
    if missing:
        raise RefusedError(
            f"this machine cannot compute in {', '.join(missing)}",
            why="every network of the cluster needs it",
        )
    difference = _difference(joining, cluster)
    if difference:
        theirs, ours = plain_text(joining.version, 32), plain_text(cluster.version, 32)
        raise RefusedError(
            f"dcnr-app {theirs} cannot join a cluster that runs {ours}",
            why=difference,
            fix=f"on the machine that joins: python -m pip install 'dcnr-app=={ours}'",
        )


def difference_note(joining: Build, cluster: Build) -> str:
    """What a person should know before admitting: an empty text if results are bitwise the same there."""
    if not joining.device_class or not cluster.device_class or joining.device_class == cluster.device_class:
        return ""
    return "another device class: results that move between these machines agree closely, not bit for bit"


def _difference(joining: Build, cluster: Build) -> str:
    if joining.protocol_max < cluster.protocol_min or cluster.protocol_max < joining.protocol_min:
        return f"they speak different protocols ({_range(joining)} and {_range(cluster)})"
    if joining.messages != cluster.messages:
        return "they know different messages"
    if joining.numerics != cluster.numerics:
        return f"they compute by different rules (numerics {joining.numerics} and {cluster.numerics})"
    return ""


def _range(build: Build) -> str:
    low, high = build.protocol_min, build.protocol_max
    return f"{low}" if low == high else f"{low} to {high}"
