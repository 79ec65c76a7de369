"""Measures links by sending messages over a PeerTransport and timing their answers; keeps the result. IO."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from dcnr_app.cluster.links import (
    KeptLink,
    LinkEstimate,
    ProbeSample,
    estimate_link,
    kept_link,
    with_link,
)
from dcnr_app.cluster.messages import Probe, ProbeReply
from dcnr_app.cluster.transport import PeerTransport
from dcnr_app.errors import DeadlineError, InvariantError, PeerError, StoreError
from dcnr_app.ids import PNodeId

_SMALL_BYTES, _N_SMALL = 16, 5
_LARGE_BYTES = (64 << 10, 1 << 20, 4 << 20)
_REPEATS = 3
_SLOW_MS = 100.0
"""A message that takes longer is neither sent again nor followed by a larger one."""
_LINKS = "links.json"


class LinkProbe:
    """Sends probes to peers. The owner hands every ProbeReply that arrives to `take`."""

    def __init__(self, transport: PeerTransport, timer_ms: Callable[[], float]) -> None:
        self._transport = transport
        self._timer_ms = timer_ms
        self._number = 0
        self._waiting: dict[tuple[PNodeId, int], asyncio.Future[float]] = {}

    def take(self, sender: PNodeId, message: ProbeReply) -> None:
        """An answer has arrived; one that nobody waits for, or of another length, counts for nothing."""
        waiting = self._waiting.get((sender, message.number))
        if waiting is not None and not waiting.done():
            waiting.set_result(self._timer_ms())

    def lost(self, peer: PNodeId, reason: str) -> None:
        """The streams with a peer broke: nobody waits for its answers any more."""
        for (target, _), waiting in self._waiting.items():
            if target == peer and not waiting.done():
                waiting.set_exception(PeerError(f"{peer} was lost while its link was measured", why=reason))

    async def measure(self, target: PNodeId, timeout_s: float = 10.0) -> LinkEstimate:
        """The link to `target`, measured now. Raises DeadlineError if it does not answer in time, PeerError
        if it is lost."""
        samples: list[ProbeSample] = []
        try:
            async with asyncio.timeout(timeout_s):
                # The first message dials and shakes hands: it is not counted.
                await self._ask(target, _SMALL_BYTES)
                samples += [await self._ask(target, _SMALL_BYTES) for _ in range(_N_SMALL)]
                for n_bytes in _LARGE_BYTES:
                    took_ms = await self._ask_some(target, n_bytes, samples)
                    if took_ms > _SLOW_MS:
                        break
        except TimeoutError as error:
            raise DeadlineError(
                f"the link to {target} could not be measured",
                why=f"it did not answer {len(samples) + 1} messages within {timeout_s:g} s",
            ) from error
        found = estimate_link(samples)
        if found is None:
            raise InvariantError("a link was measured with one size of message")
        return found

    async def _ask_some(self, target: PNodeId, n_bytes: int, samples: list[ProbeSample]) -> float:
        for _ in range(_REPEATS):
            sample = await self._ask(target, n_bytes)
            samples.append(sample)
            took_ms = sample.answered_ms - sample.sent_ms
            if took_ms > _SLOW_MS:
                break
        return took_ms

    async def _ask(self, target: PNodeId, n_bytes: int) -> ProbeSample:
        self._number += 1
        key = (target, self._number)
        answered: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting[key] = answered
        try:
            message = Probe(number=self._number, payload=bytes(n_bytes))
            sent_ms = self._timer_ms()
            await self._transport.send(target, message, {})
            return ProbeSample(n_bytes, sent_ms, await answered)
        finally:
            del self._waiting[key]


class KeptLinks:
    """Links that were measured before, in a file of `folder`; one that cannot be read counts as empty."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _LINKS

    def find(self, source: PNodeId, target: PNodeId, address: str) -> LinkEstimate | None:
        """What was measured over this address, or None."""
        return kept_link(self._read(), source, target, address)

    def keep(self, link: KeptLink) -> None:
        """Keep a measurement, in place of an older one. Raises StoreError."""
        raw = msgspec.json.encode(with_link(self._read(), link))
        part = self._path.with_name(f"{_LINKS}.{os.getpid()}.part")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.write_bytes(raw)
            part.replace(self._path)
        except OSError as error:
            raise StoreError(
                "the measured links cannot be kept", where=str(self._path), why=error.strerror or str(error)
            ) from error

    def _read(self) -> tuple[KeptLink, ...]:
        with suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode(self._path.read_bytes(), type=tuple[KeptLink, ...])
        return ()


async def linked(
    probe: LinkProbe, kept: KeptLinks, link: tuple[PNodeId, PNodeId, str], wall_ms: int
) -> LinkEstimate:
    """The link (from, to, address) as it was measured before over that address, else measured now and kept.

    Raises DeadlineError, PeerError, StoreError.
    """
    source, target, address = link
    found = await asyncio.to_thread(kept.find, source, target, address)
    if found is None:
        found = await probe.measure(target)
        made = KeptLink(source=source, target=target, address=address, estimate=found, wall_ms=wall_ms)
        await asyncio.to_thread(kept.keep, made)
    return found
