"""The other side of a front door: one question, one answer, over HTTP. Knows no order of questions. IO."""

from __future__ import annotations

import asyncio
import ipaddress
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeVar

import aiohttp
import msgspec
from yarl import URL

from dcnr_app.cluster.dialling import explain_failure
from dcnr_app.cluster.interfaces import usable_interfaces
from dcnr_app.cluster.pairing_messages import (
    MAX_REPLY_BYTES,
    Ask,
    Begin,
    Info,
    Offered,
    Problem,
    Reveal,
    Share,
    ShowProof,
    ShowShare,
    Standing,
    Verdict,
)
from dcnr_app.cluster.plain_text import plain_text
from dcnr_app.errors import DcnrError, PeerError, RefusedError, UnreachableError

_T = TypeVar("_T")
_ANSWER_S = 6.0
_CONNECT_S = 4.0
_STAGGER_S = 0.2
_TEXT_LENGTH = 400


class FrontDoorClient:
    """Questions to the front door at one address. Use as an async context manager.

    Every question raises UnreachableError if there is no answer, RefusedError with the other side's reason,
    PeerError if the answer is not one."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=_ANSWER_S, connect=_CONNECT_S),
            connector=aiohttp.TCPConnector(limit=4, force_close=True),
            trust_env=False,
            auto_decompress=False,
        )

    @property
    def place(self) -> str:
        """`host:port`, for people."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def info(self) -> Info:
        """Who is there."""
        info = await self._ask("GET", "/v1/info", None, Info)
        return msgspec.structs.replace(
            info, name=plain_text(info.name), cluster_name=plain_text(info.cluster_name)
        )

    async def begin(self, message: Begin) -> Offered:
        """Ask to join."""
        return await self._ask("POST", "/v1/pairing/begin", message, Offered)

    async def reveal(self, message: Reveal) -> Standing:
        """Show the nonce."""
        return await self._ask("POST", "/v1/pairing/reveal", message, Standing)

    async def verdict(self, message: Verdict) -> Standing:
        """Say whether the digits match."""
        return await self._ask("POST", "/v1/pairing/verdict", message, Standing)

    async def standing(self, pairing: str) -> Standing:
        """Ask how an attempt stands."""
        return await self._ask("POST", "/v1/pairing/ask", Ask(pairing), Standing)

    async def share(self, message: ShowShare) -> Share:
        """With a code: exchange shares."""
        return await self._ask("POST", "/v1/code/share", message, Share)

    async def proof(self, message: ShowProof) -> Standing:
        """With a code: prove that it is known here."""
        return await self._ask("POST", "/v1/code/proof", message, Standing)

    async def close(self) -> None:
        """End it."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        """Nothing to set up."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    async def _ask(self, method: str, path: str, message: msgspec.Struct | None, kind: type[_T]) -> _T:
        url = URL.build(scheme="http", host=self.host, port=self.port, path=path)
        body = None if message is None else msgspec.json.encode(message)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                status, content = answer.status, await self._content(answer)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UnreachableError(
                f"nothing answers at {self.place}",
                why=_why(error, self.host),
                fix="see that `dcnr-app up` runs there and its firewall lets port "
                f"{self.port} in; `dcnr-app doctor` helps to find out",
            ) from error
        return self._read(status, content, kind)

    async def _content(self, answer: aiohttp.ClientResponse) -> bytes:
        parts = bytearray()
        async for chunk in answer.content.iter_chunked(65536):
            parts += chunk
            if len(parts) > MAX_REPLY_BYTES:
                raise PeerError(f"{self.place} answers without end", fix="see what listens there")
        return bytes(parts)

    def _read(self, status: int, content: bytes, kind: type[_T]) -> _T:
        try:
            if status == 200:
                return msgspec.json.decode(content, type=kind)
            told = msgspec.json.decode(content, type=Problem)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PeerError(
                f"what answers at {self.place} is not dcnr-app's front door",
                why=f"HTTP status {status}",
                fix="look at the address and port: `dcnr-app status` shows them on the other machine",
            ) from error
        raise RefusedError(
            plain_text(told.what, _TEXT_LENGTH),
            where=self.place,
            why=plain_text(told.why, _TEXT_LENGTH),
            fix=plain_text(told.fix, _TEXT_LENGTH),
        )


def _why(error: Exception, host: str) -> str:
    """Why nothing was answered, for people."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the name leads to no address"
    if isinstance(error, aiohttp.ClientConnectorError) and _is_address(host):
        interfaces = usable_interfaces(with_loopback=True)
        return explain_failure(error.os_error.errno or 0, host, interfaces, sys.platform)
    return str(error) or repr(error)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def find_front_door(hosts: Sequence[str], port: int) -> tuple[FrontDoorClient, Info]:
    """The first of a machine's addresses that answers; they are asked side by side, each a little later than
    the one before. The caller closes the client.

    Raises UnreachableError that names each address and why; with one host, what asking it raised."""
    errors: dict[str, DcnrError] = {}
    found: list[tuple[FrontDoorClient, Info]] = []

    async def attempt(place: int, host: str) -> None:
        await asyncio.sleep(place * _STAGGER_S)
        client = FrontDoorClient(host, port)
        try:
            info = await client.info()
        except BaseException as error:
            await client.close()
            if not isinstance(error, DcnrError):
                raise
            errors[host] = error
            return
        found.append((client, info))
        for other in attempts:
            if other is not asyncio.current_task():
                other.cancel()

    async with asyncio.TaskGroup() as group:
        attempts = [group.create_task(attempt(place, host)) for place, host in enumerate(hosts)]
    for client, _ in found[1:]:  # two answered in the same turn of the loop
        await client.close()
    if found:
        return found[0]
    if len(errors) == 1:
        raise next(iter(errors.values()))
    raise UnreachableError(
        "none of the machine's addresses answers",
        why="; ".join(f"{host}: {error.what}" for host, error in errors.items()),
        fix="see that `dcnr-app up` runs there and that both machines are on one network: dcnr-app doctor",
    )
