"""gRPC's limits and timings for peer streams, as channel arguments. No IO.

Meanings: grpc's include/grpc/impl/channel_arg_names.h. Each limit bounds what one admitted peer can cost.
"""

from __future__ import annotations

from typing import Final, Literal

from dcnr_app.cluster.identity import dns_name
from dcnr_app.cluster.transport import MAX_FRAME_BYTES
from dcnr_app.ids import PNodeId

Option = tuple[str, int | str]
Channel = Literal["control", "bulk"]

SERVICE: Final = "dcnr.v1.Peer"
GREETING_TIMEOUT_S: Final = 5.0
HANDSHAKE_TIMEOUT_S: Final = 5.0
MAX_CONNECTIONS: Final = 2_048
"""All at once, strangers' half-open handshakes among them: each costs 33 KiB (measured), so 66 MiB."""
STALL_S: Final = 60.0
"""A peer that answers pings but takes no byte for so long is given up: what waits for it holds memory."""
# A silent peer is found over control after at most 1.3 + 3.4 s; one that pauses for 3 s is kept. Over bulk,
# and from the listening side, pings may wait behind megabytes in a slow link (4 MiB at 10 Mbit/s: 3.4 s).
_KEEPALIVE_TIME_MS: Final = 1_300
_STRICT_TIMEOUT_MS: Final = 3_400
_LENIENT_TIMEOUT_MS: Final = 20_000

_COMMON: Final[tuple[Option, ...]] = (
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    ("grpc.max_metadata_size", 8 << 10),
    ("grpc.absolute_max_metadata_size", 16 << 10),
    ("grpc.keepalive_time_ms", _KEEPALIVE_TIME_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_frame_size", MAX_FRAME_BYTES),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.enable_channelz", 0),
)


def client_options(peer: PNodeId, channel: Channel) -> tuple[Option, ...]:
    """For the connection of one channel to `peer`, whose name its certificate must carry."""
    return (
        *_COMMON,
        *_timeouts(_STRICT_TIMEOUT_MS if channel == "control" else _LENIENT_TIMEOUT_MS),
        ("grpc.ssl_target_name_override", dns_name(peer)),
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
        # Else control and bulk to one address would share a connection.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", int(GREETING_TIMEOUT_S * 1000)),
    )


def server_options() -> tuple[Option, ...]:
    """For the listening side."""
    return (
        *_COMMON,
        *_timeouts(_LENIENT_TIMEOUT_MS),
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_TIMEOUT_S * 1000)),
        ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
        ("grpc.max_concurrent_streams", 8),
        ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_TIME_MS // 2),
    )


def _timeouts(timeout_ms: int) -> tuple[Option, ...]:
    # The keepalive figure alone left a stopped peer unnoticed for over 14 s (grpcio 1.85): the ping's counts.
    return (("grpc.keepalive_timeout_ms", timeout_ms), ("grpc.http2.ping_timeout_ms", timeout_ms))
