"""Dialling: dead addresses delay nobody, and a failure says of every address why."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from dcnr_app.cluster.addresses import Interface
from dcnr_app.cluster.dialling import STAGGER_S, explain_failure, first_reachable, resolve
from dcnr_app.errors import UnreachableError, UserError

LAN = Interface(name="eth0", index=2, kind="wired", networks=("192.168.1.5/24",))
VPN = Interface(name="wg0", index=3, kind="vpn", networks=("10.8.0.2/24",))
NAMES = {
    errno.EHOSTUNREACH: "EHOSTUNREACH",
    errno.ENETUNREACH: "ENETUNREACH",
    errno.ECONNREFUSED: "ECONNREFUSED",
    errno.EPERM: "EPERM",
}


@contextmanager
def listening(address: str, port: int = 0, *, is_black_hole: bool = False) -> Iterator[int]:
    """A port that accepts connections, or one whose backlog is so full that the system drops what comes."""
    with ExitStack() as stack:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        server = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        try:
            server.bind((address, port))
        except OSError as error:
            pytest.skip(f"{address} cannot be bound here: {error}")
        server.listen(0 if is_black_hole else 16)
        bound: int = server.getsockname()[1]
        if is_black_hole:
            for _ in range(4):
                filler = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
                filler.setblocking(False)
                filler.connect_ex((address, bound))
        yield bound


needs_black_hole = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux drops connections to a port whose backlog is full"
)


def test_the_first_of_several_that_answer_wins() -> None:
    with listening("127.0.0.1") as port, listening("127.0.0.2", port):
        reached = asyncio.run(first_reachable(["127.0.0.2", "127.0.0.1"], port, 5.0))
    assert (reached.address, reached.port) == ("127.0.0.2", port)
    assert reached.connect_ms >= 0.0


@needs_black_hole
def test_a_black_hole_in_ipv6_costs_less_than_a_second() -> None:
    with listening("127.0.0.1") as port, listening("::1", port, is_black_hole=True):
        started = time.monotonic()
        reached = asyncio.run(first_reachable(["::1", "127.0.0.1"], port, 5.0))
        took_s = time.monotonic() - started
    assert reached.address == "127.0.0.1"
    assert STAGGER_S * 0.9 <= took_s < 1.0


def test_a_refused_address_does_not_wait_for_the_stagger() -> None:
    with listening("127.0.0.1") as port:
        started = time.monotonic()
        reached = asyncio.run(
            first_reachable([*(f"127.0.1.{i}" for i in range(1, 9)), "127.0.0.1"], port, 5.0)
        )
        took_s = time.monotonic() - started
    assert reached.address == "127.0.0.1"
    assert took_s < 8 * STAGGER_S


def test_when_all_refuse_each_is_named_with_its_reason() -> None:
    with listening("127.0.0.1") as port:
        pass
    with pytest.raises(UnreachableError) as caught:
        asyncio.run(first_reachable(["127.0.0.1", "127.0.0.2"], port, 5.0))
    assert str(port) in caught.value.what
    assert "127.0.0.1: nothing listens there" in caught.value.why
    assert "127.0.0.2: nothing listens there" in caught.value.why
    assert "dcnr-app doctor" in caught.value.fix


@needs_black_hole
def test_when_nobody_answers_in_time_each_is_named() -> None:
    with listening("127.0.0.1", is_black_hole=True) as port:
        started = time.monotonic()
        with pytest.raises(UnreachableError) as caught:
            asyncio.run(first_reachable(["127.0.0.1"], port, 0.3))
    assert time.monotonic() - started < 2.0
    assert caught.value.why == "127.0.0.1: no answer within 0.3 s"


def test_no_address_at_all_is_told_with_the_way_out() -> None:
    with pytest.raises(UnreachableError, match="no address") as caught:
        asyncio.run(first_reachable([], 4000, 1.0))
    assert "dcnr-app join" in caught.value.fix


def test_what_is_no_address_is_a_failure_of_that_address_only() -> None:
    with listening("127.0.0.1") as port:
        assert asyncio.run(first_reachable(["nonsense", "127.0.0.1"], port, 5.0)).address == "127.0.0.1"
    with pytest.raises(UnreachableError) as caught:
        asyncio.run(first_reachable(["nonsense"], 4000, 5.0))
    assert caught.value.why == "nonsense: it is no address"


@needs_black_hole
def test_a_cancelled_dial_leaves_no_task_behind() -> None:
    async def cancel() -> set[asyncio.Task[object]]:
        with listening("127.0.0.1", is_black_hole=True) as port:
            dialling = asyncio.ensure_future(first_reachable(["127.0.0.1"], port, 60.0))
            done, _ = await asyncio.wait([dialling], timeout=0.05)
            assert not done
            dialling.cancel()
            await asyncio.wait([dialling])
            assert dialling.cancelled()
            return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    assert asyncio.run(cancel()) == set()


@pytest.mark.parametrize(
    ("number", "address", "system", "said"),
    [
        (errno.EHOSTUNREACH, "192.168.1.9", "darwin", "Local Network"),
        (errno.EHOSTUNREACH, "10.8.0.9", "darwin", "Local Network"),
        (errno.EHOSTUNREACH, "192.168.1.9", "linux", "no machine answers under this address"),
        (errno.EHOSTUNREACH, "8.8.8.8", "darwin", "no route"),
        (errno.EHOSTUNREACH, "8.8.8.8", "linux", "no route"),
        (errno.ENETUNREACH, "192.168.1.9", "darwin", "no route"),
        (errno.ECONNREFUSED, "192.168.1.9", "darwin", "nothing listens"),
        (errno.EPERM, "192.168.1.9", "linux", "not permitted"),
        (0, "192.168.1.9", "linux", "could not be dialled"),
    ],
    ids=lambda value: NAMES.get(value, str(value)) if isinstance(value, int) else value,
)
def test_an_error_number_is_explained(number: int, address: str, system: str, said: str) -> None:
    explained = explain_failure(number, address, (LAN, VPN), system)
    assert said in explained
    assert ("Local Network" in explained) == (said == "Local Network")


def test_an_address_resolves_to_itself() -> None:
    assert asyncio.run(resolve("192.0.2.9", 5.0)) == ("192.0.2.9",)


def test_localhost_resolves_to_loopback() -> None:
    assert set(asyncio.run(resolve("localhost", 5.0))) <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize("host", ["", "a b", "a\x00b", "x" * 300])
def test_what_cannot_be_a_host_name_is_refused(host: str) -> None:
    with pytest.raises(UserError, match="no host name"):
        asyncio.run(resolve(host, 1.0))


def test_a_name_that_leads_nowhere_is_told() -> None:
    with pytest.raises(UnreachableError, match="leads to no address"):
        asyncio.run(resolve("a..b", 5.0))
