"""A machine's identity: stable on its machine, new on another, made once, kept from others."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization

from dcnr_app.cluster.machine import Machine, load_machine, rename_machine
from dcnr_app.cluster.machine_binding import machine_binding, platform_uuid
from dcnr_app.cluster.registrar import create_cluster
from dcnr_app.errors import StoreError, UserError
from dcnr_app.settings import Home


def here() -> str:
    return "id here"


def elsewhere() -> str:
    return "id elsewhere"


def test_id_is_the_same_after_three_restarts_and_the_hash_of_the_public_key(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = load_machine(home, binding=here)
    for _ in range(3):
        again = load_machine(home, binding=here)
        assert (again.id, again.key_pem, again.notices) == (first.id, first.key_pem, ())
    key = serialization.load_pem_public_key(first.public_key_pem)
    digest = hashes.Hash(hashes.SHA256())
    digest.update(
        key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    assert first.id == digest.finalize().hex()[:16]


def test_copied_data_folder_gets_a_new_id_leaves_the_cluster_and_says_so(tmp_path: Path) -> None:
    original = Home(tmp_path / "original")
    machine = load_machine(original, binding=here, name="original")
    create_cluster(original, machine, "home", n_pnodes=1, now_ms=1)
    shutil.copytree(original.root, tmp_path / "copy")
    copy = load_machine(Home(tmp_path / "copy"), binding=elsewhere)
    assert copy.id != machine.id
    (notice,) = copy.notices
    assert "copied from another machine" in notice
    assert "join again" in notice
    folder = tmp_path / "copy" / "cluster"
    assert not (folder / "cluster.json").exists()
    assert not (folder / "authority.key").exists()
    (aside,) = folder.glob("set-aside-another-machine-*")
    assert (aside / "machine.key").read_bytes() == machine.key_pem
    assert (aside / "cluster.json").exists()
    assert str(aside) in notice
    assert load_machine(Home(tmp_path / "copy"), binding=elsewhere).notices == ()
    assert load_machine(original, binding=here).id == machine.id


def test_notice_of_a_copied_folder_without_a_cluster_does_not_speak_of_one(tmp_path: Path) -> None:
    load_machine(Home(tmp_path), binding=here)
    (notice,) = load_machine(Home(tmp_path), binding=elsewhere).notices
    assert "in no cluster" not in notice


def test_two_processes_that_start_at_once_get_one_id(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from dcnr_app.settings import Home\n"
        "from dcnr_app.cluster.machine import load_machine\n"
        "sys.stdin.read(1); print(load_machine(Home(Path(sys.argv[1]))).id)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    ids = {process.communicate("x", timeout=50)[0] for process in started}
    assert len(ids) == 1
    assert ids != {""}


def test_start_that_ended_between_the_two_files_keeps_the_key(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = load_machine(home, binding=here)
    (tmp_path / "cluster" / "machine.json").unlink()
    again = load_machine(home, binding=here)
    assert (again.id, again.notices) == (first.id, ())
    assert load_machine(home, binding=elsewhere).id != first.id


def test_missing_key_gives_a_new_id_and_says_so(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = load_machine(home, binding=here)
    (tmp_path / "cluster" / "machine.key").unlink()
    again = load_machine(home, binding=here)
    assert again.id != first.id
    assert "key of this machine is missing" in again.notices[0]


@pytest.mark.parametrize("name", ["machine.key", "machine.json"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"[]", b"-----BEGIN PRIVATE KEY-----\n"])
def test_half_file_is_named_with_what_to_do(tmp_path: Path, name: str, content: bytes) -> None:
    load_machine(Home(tmp_path), binding=here)
    path = tmp_path / "cluster" / name
    path.write_bytes(content)
    with pytest.raises(StoreError, match="cannot be read") as told:
        load_machine(Home(tmp_path), binding=here)
    assert told.value.where == str(path)
    assert told.value.fix
    assert path.read_bytes() == content


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no file modes")
def test_key_is_readable_by_its_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        load_machine(Home(tmp_path / "home"), binding=here)
    finally:
        os.umask(before)
    folder = tmp_path / "home" / "cluster"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no file modes")
def test_folder_that_others_could_look_into_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    folder.chmod(0o755)
    load_machine(Home(tmp_path), binding=here)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_what_the_system_calls_the_machine_is_not_stored(tmp_path: Path) -> None:
    load_machine(Home(tmp_path), binding=lambda: "id 0123456789abcdef")
    stored = b"".join(path.read_bytes() for path in (tmp_path / "cluster").iterdir())
    assert b"0123456789abcdef" not in stored


def test_name_lasts_and_holds_nothing_that_moves_a_cursor(tmp_path: Path) -> None:
    home = Home(tmp_path)
    machine = load_machine(home, binding=here, name="old")
    renamed = rename_machine(home, machine, "desk\x1b]52;\u202eknurt ")
    assert renamed.name == "desk]52;knurt"
    assert load_machine(home, binding=here).name == renamed.name
    assert renamed.id == machine.id
    with pytest.raises(UserError, match="is no name"):
        rename_machine(home, machine, "\x00\x07")


def test_private_key_is_in_no_repr(tmp_path: Path) -> None:
    machine = load_machine(Home(tmp_path), binding=here)
    assert "PRIVATE" not in repr(machine)
    assert isinstance(machine, Machine)


def test_this_machine_has_a_binding_that_stays() -> None:
    assert machine_binding() == machine_binding()
    assert machine_binding().partition(" ")[2]


def test_platform_uuid_is_found_in_what_macos_lists() -> None:
    listing = '+-o J314s  <class IOPlatformExpertDevice>\n{\n  "IOPlatformSerialNumber" = "C02"\n'
    line = '  "IOPlatformUUID" = "0A1B2C3D-0000-1111-2222-333344445555"\n}'
    assert platform_uuid(listing + line) == "0a1b2c3d-0000-1111-2222-333344445555"
    assert platform_uuid(listing) == ""
