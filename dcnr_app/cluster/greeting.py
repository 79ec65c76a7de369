"""The Hello that opens every stream, and when two builds must not talk. Pure."""

from __future__ import annotations

from dcnr_app import __version__
from dcnr_app.cluster.codec import known_tags
from dcnr_app.cluster.messages import PROTOCOL_VERSION, Hello
from dcnr_app.ids import PNodeId


def hello(pnode: PNodeId) -> Hello:
    """How this build introduces itself."""
    return Hello(pnode=pnode, protocol=PROTOCOL_VERSION, version=__version__, tags=known_tags())


def mismatch(other: Hello, expected: PNodeId) -> str:
    """Why the stream that `other` opens cannot be used, naming both versions, or an empty text.

    A message that one side does not know would fail in the middle of a run, so the sets must be equal.
    """
    if other.pnode != expected:
        return f"it calls itself {other.pnode!r}, its certificate says {expected!r}"
    here = f"dcnr-app {__version__} (protocol {PROTOCOL_VERSION})"
    both = f"{here} and {other.version[:32]} (protocol {other.protocol})"
    if other.protocol != PROTOCOL_VERSION:
        return f"{both} speak different protocols: install one version on all machines"
    different = set(known_tags()) ^ set(other.tags)
    if different:
        names = ", ".join(sorted(different)[:8])[:256]
        return f"{both} know different messages ({names}): install one version on all machines"
    return ""
