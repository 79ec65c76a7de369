"""`session ledger` on records that cannot be read: an error in words that names the session."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import msgspec
import pytest

from dcnr_app.app import App
from dcnr_app.store.lock import HomeLock
from dcnr_app.store.sessions import NETWORKS, update_session
from tests.cli.calling import Cli


def _session(cli: Cli) -> str:
    return str(cli("session", "ls", "--json").json[0]["session"])


def _store_network(cli: Cli, raw: bytes) -> None:
    connection = sqlite3.connect(cli.home.control)
    with connection:
        connection.execute("UPDATE entries SET value = ? WHERE table_name = ?", (raw, NETWORKS))
    connection.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"nodes": 3}',
        b'{"nodes": [3]}',
        b'{"nodes": [{"name": "a", "vnode": {"type": "no_such"}, "inputs": [], "share": null}]}',
        b'{"name": "n", "nodes": [], "inputs": [], "outputs": {}}',
        b'{"name": "n", "nodes": [], "outputs": {}, '
        b'"inputs": [{"name": "tokens", "shape": [1, 0], "dtype": "int32"}]}',
    ],
)
def test_a_network_that_cannot_be_read_is_told_with_the_session(
    on_copy: Callable[[], Cli], raw: bytes
) -> None:
    cli = on_copy()
    name = _session(cli)
    _store_network(cli, raw)
    result = cli("session", "ledger", "latest")
    assert result.code == 1
    assert f"{name}: the network of a session cannot be read" in result.err


def test_a_context_longer_than_the_training_text_is_told_instead_of_waited_for(
    on_copy: Callable[[], Cli],
) -> None:
    cli = on_copy()
    inputs = [{"name": "tokens", "shape": [1, 1_000_000_000], "dtype": "int32"}]
    _store_network(cli, msgspec.json.encode({"name": "n", "nodes": [], "inputs": inputs, "outputs": {}}))
    result = cli("session", "ledger", "latest")
    assert result.code == 2
    assert "0 windows of training text" in result.err


def test_settings_that_cannot_be_read_are_told_with_the_session(on_copy: Callable[[], Cli]) -> None:
    cli = on_copy()
    name = _session(cli)
    with HomeLock(cli.home, "a test"):
        store = App(cli.home).writer()
        update_session(store, name, lambda r: msgspec.structs.replace(r, settings={"batch": "many"}))
        store.close()
    result = cli("session", "ledger", "latest")
    assert result.code == 1
    assert f"{name}: the settings of a session cannot be read" in result.err
