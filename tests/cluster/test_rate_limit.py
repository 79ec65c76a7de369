"""Token buckets, and what counts as one address."""

from __future__ import annotations

import pytest

from dcnr_app.cluster.rate_limit import RateLimit, RateSettings, address_group


def test_burst_is_taken_at_once_and_then_the_rate_holds() -> None:
    limit = RateLimit(RateSettings(per_s=10.0, burst=3.0))
    assert [limit.takes("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert not limit.takes("a", 99.0)
    assert limit.takes("a", 100.0)
    assert not limit.takes("a", 100.0)


def test_addresses_do_not_share_a_bucket_and_a_long_rest_fills_it_no_further() -> None:
    limit = RateLimit(RateSettings(per_s=10.0, burst=1.0))
    assert limit.takes("a", 0.0)
    assert limit.takes("b", 0.0)
    assert limit.takes("a", 1e9)
    assert not limit.takes("a", 1e9)


def test_flood_of_addresses_is_not_remembered_without_end() -> None:
    limit = RateLimit(RateSettings(per_s=0.0, burst=1.0))
    assert limit.takes("busy", 0.0)
    for number in range(5000):
        limit.takes(str(number), 0.0)
        assert not limit.takes("busy", 0.0)
    assert len(limit._buckets) <= 1025


@pytest.mark.parametrize(
    ("host", "group"),
    [
        ("192.168.1.5", "192.168.1.5"),
        ("::ffff:192.168.1.5", "192.168.1.5"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::1"),
        ("unknown", "unknown"),
    ],
)
def test_one_machines_addresses_count_as_one(host: str, group: str) -> None:
    assert address_group(host) == group
