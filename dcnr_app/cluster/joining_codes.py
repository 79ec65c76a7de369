"""Codes and invite links that admit one machine each: made, tried, burnt, expired. Pure.

A code `123-456` is typed; its first digit is the slot that finds it and no secret. An invite is a link; a
hash of its token finds it. What is secret of either only ever serves as the password of a
password-authenticated key exchange and is never sent. Times are wall-clock, as invites outlive a restart, and
only one machine's clock counts.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, Literal, NamedTuple

import msgspec

from dcnr_app.errors import RefusedError, UserError

CodeState = Literal["live", "used", "burnt", "expired"]

CODE_LIFE_MS: Final = 10 * 60 * 1000
INVITE_LIFE_MS: Final = 24 * 60 * 60 * 1000
MAX_TRIES: Final = 3
MAX_LIVE_CODES: Final = 8  # of the 10 slots, so that one for the next code is soon free
MAX_LIVE_INVITES: Final = 64
TOKEN_BYTES: Final = 16
GET_A_NEW_ONE: Final = "get a new one on the cluster's orchestrator: dcnr-app invite"

_MAX_SPENT: Final = 32  # kept to say why a spent one is refused
_CODE_FORM = re.compile(r"([0-9]{3})[- ]?([0-9]{3})")
_HOST_FORM = re.compile(r"[A-Za-z0-9._%:-]{1,253}")
_SCHEME = "dcnr://"
_FINGERPRINT_FORM = re.compile(r"[0-9a-f]{64}")
_TOKEN_FORM = re.compile(r"[A-Za-z0-9_-]{22}")


class JoiningCode(msgspec.Struct, frozen=True, kw_only=True):
    """One code or invite. `finder` is what a joining machine may send in clear to say which it has."""

    kind: Literal["code", "invite"]
    finder: str
    secret: str
    expires_ms: int
    tries_left: int = MAX_TRIES
    state: CodeState = "live"

    def __repr__(self) -> str:
        """Without the secret, so that no log can hold it."""
        return f"JoiningCode(kind={self.kind!r}, finder={self.finder!r}, state={self.state!r})"


class CodeBook(msgspec.Struct, frozen=True):
    """All codes and invites of a cluster, oldest first."""

    codes: tuple[JoiningCode, ...] = ()


class Invite(NamedTuple):
    """What an invite link says: every address of the orchestrator's front door, the sha256 of the
    cluster authority's certificate (hex), and the secret."""

    hosts: tuple[str, ...]
    port: int
    ca_fingerprint: str
    token: str


def code_added(book: CodeBook, digits: int, now_ms: int) -> tuple[CodeBook, JoiningCode]:
    """With a new code, from a random number in 0 .. 99999, in the first free slot.

    Raises RefusedError while too many codes are live."""
    book = tidied(book, now_ms)
    live = {code.finder for code in book.codes if code.kind == "code" and code.state == "live"}
    if len(live) >= MAX_LIVE_CODES:
        raise RefusedError(
            f"{len(live)} codes are waiting to be used",
            why="they admit one machine each",
            fix="use one of them, or wait until they expire",
        )
    free = [slot for slot in "0123456789" if slot not in live]
    # Among the free slots the least recently used one, so that a mistyped old code hears why it is refused.
    latest = {code.finder: place for place, code in enumerate(book.codes) if code.kind == "code"}
    slot = min(free, key=lambda slot: latest.get(slot, -1))
    text = f"{slot}{digits % 100_000:05d}"
    code = JoiningCode(
        kind="code", finder=slot, secret=f"{text[:3]}-{text[3:]}", expires_ms=now_ms + CODE_LIFE_MS
    )
    return CodeBook((*book.codes, code)), code


def invite_added(
    book: CodeBook, token: str, now_ms: int, life_ms: int = INVITE_LIFE_MS
) -> tuple[CodeBook, JoiningCode]:
    """With a new invite, from a random url-safe token of TOKEN_BYTES bytes. Raises RefusedError while too
    many invites are live."""
    book = tidied(book, now_ms)
    n_live = sum(code.kind == "invite" and code.state == "live" for code in book.codes)
    if n_live >= MAX_LIVE_INVITES:
        raise RefusedError(f"{n_live} invites are waiting to be used", fix="wait until they expire")
    invite = JoiningCode(
        kind="invite", finder=invite_finder(token), secret=token, expires_ms=now_ms + life_ms
    )
    return CodeBook((*book.codes, invite)), invite


def found(book: CodeBook, finder: str, now_ms: int) -> JoiningCode:
    """The live code that `finder` names. Raises RefusedError, saying whether it is used, burnt or expired,
    and what to do."""
    known = [code for code in tidied(book, now_ms).codes if code.finder == finder]
    live = [code for code in known if code.state == "live"]
    if live:
        return live[-1]
    what = "the invite" if len(finder) > 1 else "the code"
    if not known:
        raise RefusedError(f"{what} is not known here", why="it may have expired", fix=GET_A_NEW_ONE)
    state = known[-1].state
    if state == "burnt":
        raise RefusedError(
            f"{what} was typed wrong {MAX_TRIES} times and is burnt",
            why="so that nobody can try them all",
            fix=GET_A_NEW_ONE,
        )
    if state == "used":
        raise RefusedError(f"{what} was used already", why="it admits one machine", fix=GET_A_NEW_ONE)
    raise RefusedError(f"{what} has expired", fix=GET_A_NEW_ONE)


def tried_wrong(book: CodeBook, code: JoiningCode) -> tuple[CodeBook, JoiningCode]:
    """After a wrong proof: one try less, and burnt when none is left."""
    tries_left = code.tries_left - 1
    state: CodeState = "live" if tries_left > 0 else "burnt"
    secret = code.secret if tries_left > 0 else ""
    fresh = msgspec.structs.replace(code, tries_left=tries_left, state=state, secret=secret)
    return _replaced(book, code, fresh), fresh


def used(book: CodeBook, code: JoiningCode) -> CodeBook:
    """After it admitted a machine: of no use any more."""
    return _replaced(book, code, msgspec.structs.replace(code, state="used", secret=""))


def tidied(book: CodeBook, now_ms: int) -> CodeBook:
    """With what has expired by now marked so, the secrets of all spent ones gone, and only the latest of
    those kept."""
    marked = [_aged(code, now_ms) for code in book.codes]
    spent = [code for code in marked if code.state != "live"]
    dropped = len(spent) - _MAX_SPENT
    kept = []
    for code in marked:
        if code.state != "live" and dropped > 0:
            dropped -= 1
            continue
        kept.append(code)
    return CodeBook(tuple(kept))


def read_code(text: str) -> str:
    """A typed code as `123-456`; blanks around it and a missing dash are forgiven. Raises UserError."""
    match = _CODE_FORM.fullmatch(text.strip())
    if match is None:
        raise UserError(
            f"{text[:40]!r} is not a code", why="a code has six digits, such as 123-456", fix=GET_A_NEW_ONE
        )
    return f"{match.group(1)}-{match.group(2)}"


def code_finder(code: str) -> str:
    """What says which code it is: its first digit."""
    return code[0]


def invite_finder(token: str) -> str:
    """What says which invite it is: the beginning of a hash of its token, which gives nothing of it away."""
    return hashlib.sha256(b"dcnr invite\n" + token.encode()).hexdigest()[:16]


def write_link(invite: Invite) -> str:
    """The link `dcnr://host1,host2:port/#fingerprint.token`, all of whose secret is in the part that no
    program sends anywhere by itself."""
    hosts = ",".join(f"[{host}]" if ":" in host else host for host in invite.hosts)
    return f"{_SCHEME}{hosts}:{invite.port}/#{invite.ca_fingerprint}.{invite.token}"


def read_link(text: str) -> Invite:
    """What an invite link says. Raises UserError if it is none, or was cut short."""
    rest = text.strip()
    place, _, fragment = rest.removeprefix(_SCHEME).partition("#")
    ca_fingerprint, _, token = fragment.partition(".")
    if not rest.startswith(_SCHEME) or len(rest) > 4096:
        raise UserError(f"{rest[:60]!r} is not an invite", why=f"an invite starts with {_SCHEME}")
    if _FINGERPRINT_FORM.fullmatch(ca_fingerprint) is None or _TOKEN_FORM.fullmatch(token) is None:
        raise UserError(
            "the invite is not whole", why="what follows the # was cut or changed", fix="copy the whole line"
        )
    hosts, _, port = place.rstrip("/").rpartition(":")
    names = tuple(host.removeprefix("[").removesuffix("]") for host in hosts.split(",") if host)
    if not names or not all(map(_HOST_FORM.fullmatch, names)):
        raise UserError("the invite names no machine", fix="copy the whole line")
    return Invite(names, _port(port), ca_fingerprint, token)


def read_target(text: str, default_port: int) -> tuple[str, int]:
    """Host and port of `HOST[:PORT]`, with an IPv6 address bare or, before a port, in brackets. Raises
    UserError."""
    target = text.strip()
    if target.startswith("["):
        host, _, rest = target[1:].partition("]")
        port = rest.removeprefix(":")
    elif target.count(":") == 1:
        host, _, port = target.partition(":")
    else:
        host, port = target, ""
    if _HOST_FORM.fullmatch(host) is None:
        raise UserError(
            f"{text[:60]!r} is not an address", why="wanted is HOST or HOST:PORT, such as 192.168.1.5"
        )
    return host, _port(port) if port else default_port


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        raise UserError(f"{text[:20]!r} is not a port", why="a port is a number from 1 to 65535")
    return int(text)


def _aged(code: JoiningCode, now_ms: int) -> JoiningCode:
    if code.state == "live" and now_ms < code.expires_ms:
        return code
    state: CodeState = "expired" if code.state == "live" else code.state
    return msgspec.structs.replace(code, state=state, secret="")


def _replaced(book: CodeBook, old: JoiningCode, new: JoiningCode) -> CodeBook:
    """`new` in place of the live code with its finder; unchanged if that is gone meanwhile."""
    return CodeBook(
        tuple(
            new if code.finder == old.finder and code.state == "live" and code.secret == old.secret else code
            for code in book.codes
        )
    )
