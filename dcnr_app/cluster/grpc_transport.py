"""PeerTransport over gRPC with mutual TLS: who may speak, one Link per peer, when a peer counts as lost.

A to B is a stream that A opens, one per channel and each on its own connection: messages with tensors go
over bulk, all others over control. The up to four streams with one peer form a Link. They break together: the
first failure ends all of them, and the receiver hears of it once. The next `send` dials anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import grpc
import grpc.aio

from dcnr_app.cluster.grpc_incoming import IncomingStream
from dcnr_app.cluster.grpc_options import SERVICE, Channel, server_options
from dcnr_app.cluster.grpc_streams import OutgoingStream, Traffic
from dcnr_app.cluster.identity import Credentials, read_identity, refuse_stranger
from dcnr_app.cluster.messages import AnyMessage
from dcnr_app.cluster.transport import HostArray, LinkTotals, Member, Receiver
from dcnr_app.errors import PeerError, RefusedError, UserError
from dcnr_app.failpoints import Failpoints
from dcnr_app.ids import PNodeId

_LOG = logging.getLogger(__name__)
_MAX_STREAMS = 1_024
_MAX_STREAMS_OF_PEER = 8
"""A peer has two, and twice as many while it reconnects: none may use up those of the others."""
# Without grace gRPC cancels with an error that every peer's gRPC writes to its stderr.
_STOP_GRACE_S = 0.5


class _Link:
    """All streams with one peer between two breaks."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.broken = ""
        self.outgoing: dict[Channel, tuple[OutgoingStream, asyncio.Task[str]]] = {}
        self.incoming: dict[Channel, IncomingStream] = {}


class GrpcTransport:
    """One PNode's streams with the members of its cluster."""

    def __init__(
        self,
        pnode: PNodeId,
        credentials: Credentials,
        cluster: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        failpoints: Failpoints | None = None,
    ) -> None:
        self._pnode = pnode
        self._credentials = credentials
        self._cluster = cluster
        self._host = host
        self._port = port
        self._failpoints = failpoints or Failpoints()
        self._members: dict[PNodeId, Member] = {}
        self._links: dict[PNodeId, _Link] = {}
        self._incoming: set[IncomingStream] = set()
        self._tasks: set[asyncio.Task[str]] = set()
        self._traffic = Traffic()
        self._receiver: Receiver | None = None
        self._server: Any = None

    async def start(self, receiver: Receiver) -> str:
        """Listen; returns `host:port` with the real port. Raises UserError if the address is taken."""
        credentials = self._credentials
        tls = grpc.ssl_server_credentials(
            [(credentials.key_pem, credentials.cert_pem)], credentials.ca_pem, require_client_auth=True
        )
        channels: tuple[Channel, ...] = ("control", "bulk")
        handlers = {
            channel: grpc.stream_stream_rpc_method_handler(partial(self._handle, channel))
            for channel in channels
        }
        server = grpc.aio.server(options=server_options(), maximum_concurrent_rpcs=_MAX_STREAMS)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            port = server.add_secure_port(f"{self._host}:{self._port}", tls)
        except RuntimeError as error:
            raise UserError(
                f"cannot listen on {self._host}:{self._port}",
                why=str(error),
                fix="choose another port, or end the program that holds it",
            ) from error
        self._receiver = receiver
        await server.start()
        self._server = server
        return f"{self._host}:{port}"

    def set_members(self, members: Sequence[Member]) -> None:
        """Replace the membership. Streams of a PNode that is gone, or came back with another certificate or
        role, are cancelled on both ends; this end's receiver is not told, as it is the caller's doing."""
        self._members = {member.pnode: member for member in members}
        for peer, link in list(self._links.items()):
            now = self._members.get(peer)
            if now is None or (now.fingerprint, now.role) != (link.member.fingerprint, link.member.role):
                self._break(link, f"{self._pnode} removed {peer} from the membership", tells=False)

    async def send(self, to: PNodeId, message: AnyMessage, tensors: Mapping[str, HostArray]) -> None:
        """Send one message, in order per channel; waits while earlier ones are being written. The tensors
        may be reused when it returns. Raises PeerError if the peer is no member, cannot be reached or is
        lost meanwhile."""
        member = self._members.get(to)
        if self._server is None:
            raise PeerError(f"{to} cannot be reached", why="this transport is not open")
        if member is None:
            raise PeerError(f"{to} cannot be reached", why="it is not a member of this cluster")
        self._failpoints.hit("transport.send")
        link = self._links.setdefault(to, _Link(member))
        channel: Channel = "bulk" if tensors else "control"
        if channel not in link.outgoing:
            self._dial(link, member, channel)
        stream, _ = link.outgoing[channel]
        await stream.send(message, tensors)

    def totals(self) -> LinkTotals:
        """Bytes of all frames so far, gRPC's framing included."""
        return self._traffic.totals()

    async def close(self) -> None:
        """End all streams, wait for them and stop listening. The receiver is not called any more."""
        server, self._server = self._server, None
        reason = f"{self._pnode} closed its streams"
        for link in list(self._links.values()):
            self._break(link, reason, tells=False)
        for stream in list(self._incoming):
            stream.stop(reason)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(stream.done() for stream in list(self._incoming)))
        if server is not None:
            await server.stop(_STOP_GRACE_S)

    def _dial(self, link: _Link, member: Member, channel: Channel) -> None:
        receiver = self._receiver
        if receiver is None:
            raise PeerError(f"{member.pnode} cannot be reached", why="this transport is not open")
        stream = OutgoingStream(
            self._pnode,
            member.pnode,
            channel,
            lambda refused: receiver.deliver(member.pnode, refused, {}),
        )
        task = asyncio.create_task(stream.run(member.address, self._credentials, self._traffic))
        self._tasks.add(task)
        task.add_done_callback(partial(self._outgoing_ended, link))
        link.outgoing[channel] = (stream, task)

    def _outgoing_ended(self, link: _Link, task: asyncio.Task[str]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _LOG.error("stream_failed peer=%s", link.member.pnode, exc_info=error)
        self._break(link, f"{type(error).__name__}: {error}" if error else task.result())

    async def _handle(self, channel: Channel, _requests: object, context: Any) -> None:
        """One incoming stream: first who it is, then the greeting, then its messages."""
        try:
            peer = self._admit(context)
        except RefusedError as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        if sum(each.peer == peer for each in self._incoming) >= _MAX_STREAMS_OF_PEER:
            _LOG.warning("stream_refused peer=%s channel=%s why=too many streams", peer, channel)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{peer} has too many streams")
        stream = IncomingStream(self._pnode, peer, context, self._traffic, self._failpoints)
        self._incoming.add(stream)
        try:
            await stream.greet()
            await self._serve(channel, stream, context)
        except RefusedError as error:
            _LOG.warning("stream_refused peer=%s channel=%s why=%s", peer, channel, error)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except PeerError as error:
            _LOG.debug("stream_ended peer=%s why=%s", peer, error)
        except asyncio.CancelledError:
            reason = stream.why_stopped()
            if not reason:
                raise
            await context.abort(grpc.StatusCode.CANCELLED, reason)
        finally:
            self._incoming.discard(stream)

    async def _serve(self, channel: Channel, stream: IncomingStream, context: Any) -> None:
        # The membership may have changed while the greeting was on its way.
        self._admit(context)
        link = self._links.setdefault(stream.peer, _Link(self._members[stream.peer]))
        if channel in link.incoming:
            # The peer restarted and dialled before its old connection was seen to break.
            self._break(link, f"{stream.peer} opened a new stream")
            link = self._links.setdefault(stream.peer, _Link(self._members[stream.peer]))
        link.incoming[channel] = stream
        receiver = self._receiver
        reason = "the peer left, or its connection broke"
        try:
            if receiver is not None:
                await stream.serve(receiver)
        except PeerError as error:
            reason = error.what
        except RefusedError as error:
            reason = error.what
            raise
        finally:
            del link.incoming[channel]
            self._break(link, reason)

    def _admit(self, context: Any) -> PNodeId:
        """The PNode that the TLS client certificate belongs to. Raises RefusedError if it is no member."""
        certificates = context.auth_context().get("x509_pem_cert", ())
        if not certificates or self._server is None:
            raise RefusedError("no client certificate" if not certificates else "not open")
        identity = read_identity(certificates[0])
        stranger = refuse_stranger(identity, self._cluster, self._members)
        if stranger:
            _LOG.warning("peer_refused address=%s why=%s", context.peer(), stranger)
            raise RefusedError(stranger)
        return identity.pnode

    def _break(self, link: _Link, reason: str, *, tells: bool = True) -> None:
        """End the link's streams; the first reason counts."""
        if link.broken:
            return
        link.broken = reason
        peer = link.member.pnode
        if self._links.get(peer) is link:
            del self._links[peer]
        for stream, task in link.outgoing.values():
            stream.end(reason)
            task.cancel()
        for incoming in link.incoming.values():
            incoming.stop(reason)
        if tells and self._receiver is not None:
            self._receiver.lost(peer, reason)
