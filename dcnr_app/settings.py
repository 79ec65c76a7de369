"""Where this app keeps its files and finds its assets: the only reader of environment and configuration.

Knows no layer above it. Nothing here creates a folder except `Home.ensure`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from dcnr_app.errors import InvalidError, StoreError, UserError
from dcnr_app.limits import Limits, check_limits

HOME_VARIABLE = "DCNR_HOME"
FAILPOINT_VARIABLE = "DCNR_FAILPOINT"
PRIVATE_MODE = 0o700
_MOST_CONFIG_BYTES = 64 * 1024
_QUIET = "ERROR"
_TRACED = (("GRPC_VERBOSITY", "INFO"), ("GRPC_TRACE", "handshaker"))
_LIMITS_FIX = "correct it, or: dcnr-app limits set --help"


class Home(msgspec.Struct, frozen=True):
    """The folder that holds all durable state of one user; `root` is absolute."""

    root: Path

    @property
    def control(self) -> Path:
        """SQLite file of events, commits, ledger and records: durable at every commit."""
        return self.root / "control.sqlite"

    @property
    def metrics(self) -> Path:
        """SQLite file of metrics: the last rows may be lost at power failure."""
        return self.root / "metrics.sqlite"

    @property
    def tokenizers(self) -> Path:
        """Folder of trained tokenizers."""
        return self.root / "tokenizers"

    @property
    def datasets(self) -> Path:
        """Folder of prepared datasets."""
        return self.root / "datasets"

    @property
    def sessions(self) -> Path:
        """Folder of sessions; checkpoints lie under it."""
        return self.root / "sessions"

    @property
    def networks(self) -> Path:
        """Folder of the user's network files."""
        return self.root / "networks"

    @property
    def measured(self) -> Path:
        """Folder of what was measured of this machine's devices and links; removed, it is measured anew."""
        return self.root / "measured"

    @property
    def config(self) -> Path:
        """The person's configuration: YAML with the section `limits`."""
        return self.root / "config.yaml"

    @property
    def lock(self) -> Path:
        """File that the one writer of this home holds locked."""
        return self.root / "lock"

    @property
    def lock_holder(self) -> Path:
        """File beside the lock that says who holds it."""
        return self.root / "lock.holder.json"

    def ensure(self) -> None:
        """Create the root and its folders, readable by the owner only; folders that exist stay as they are.

        Raises UserError if something else stands in the way, StoreError if they cannot be created.
        """
        for folder in (
            self.root,
            self.tokenizers,
            self.datasets,
            self.sessions,
            self.networks,
        ):
            try:
                folder.mkdir(mode=PRIVATE_MODE, parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise UserError(
                    f"{folder} cannot be a folder",
                    why=error.strerror or str(error),
                    fix=f"move that file away, or set {HOME_VARIABLE} to another folder",
                ) from error
            except OSError as error:
                raise StoreError(
                    f"cannot create {folder}",
                    why=error.strerror or str(error),
                    fix=f"set {HOME_VARIABLE} to a folder that you can write to",
                ) from error


def find_home(environ: Mapping[str, str] | None = None) -> Home:
    """The home that DCNR_HOME names, or this system's folder for user data. `environ` defaults to the
    process's.

    Touches no file. Raises UserError if DCNR_HOME names a user that does not exist (`~nobody-here`).
    """
    named = (os.environ if environ is None else environ).get(HOME_VARIABLE, "")
    if not named:
        return Home(Path(platformdirs.user_data_dir("dcnr-app", appauthor=False)).absolute())
    try:
        return Home(Path(named).expanduser().absolute())
    except RuntimeError as error:
        raise UserError(f"{HOME_VARIABLE}={named!r} is not a folder name", why=str(error)) from error


def is_home_named(environ: Mapping[str, str] | None = None) -> bool:
    """Whether DCNR_HOME names a home. `environ` defaults to the process's."""
    return bool((os.environ if environ is None else environ).get(HOME_VARIABLE, ""))


def failpoint_text(environ: Mapping[str, str] | None = None) -> str:
    """What DCNR_FAILPOINT says, for `dcnr_app.failpoints.parse`; empty if nothing is armed. `environ`
    defaults to the process's."""
    return (os.environ if environ is None else environ).get(FAILPOINT_VARIABLE, "")


def environment_of(home: Home) -> dict[str, str]:
    """The whole environment of a `dcnr-app` process that is to work in `home`: this one's otherwise."""
    return {**os.environ, HOME_VARIABLE: str(home.root)}


def load_limits(home: Home) -> Limits:
    """The owner's limits in `config.yaml`; none where there is no such file or section. Raises InvalidError
    for what cannot be read, StoreError if the file cannot be opened."""
    section = _read_config(home.config).get("limits", {})
    try:
        return check_limits(msgspec.convert(section, Limits))
    except msgspec.ValidationError as error:
        raise InvalidError(
            "the owner's limits cannot be read", where=str(home.config), why=str(error), fix=_LIMITS_FIX
        ) from error
    except UserError as error:
        raise InvalidError(error.what, where=str(home.config), why=error.why, fix=_LIMITS_FIX) from error


def save_limits(home: Home, limits: Limits) -> None:
    """Write the limits into `config.yaml`, its other sections kept (comments are not). Raises InvalidError if
    the file there is none of ours, StoreError if it cannot be written."""
    import yaml

    config = {**_read_config(home.config), "limits": msgspec.to_builtins(limits)}
    part = home.config.with_name(f"{home.config.name}.part")
    try:
        home.root.mkdir(mode=PRIVATE_MODE, parents=True, exist_ok=True)
        part.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
        part.replace(home.config)
    except OSError as error:
        raise StoreError(
            "the limits cannot be written", where=str(home.config), why=error.strerror or str(error)
        ) from error


def _read_config(path: Path) -> dict[str, Any]:
    import yaml

    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StoreError(
            "the configuration cannot be read", where=str(path), why=error.strerror or str(error)
        ) from error
    try:
        if len(raw) > _MOST_CONFIG_BYTES:
            raise ValueError(f"it has {len(raw)} bytes, at most {_MOST_CONFIG_BYTES}")
        found = yaml.safe_load(raw.decode("utf-8"))
        if found is not None and not isinstance(found, dict):
            raise ValueError("it should hold sections such as `limits:`")
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise InvalidError(
            "the configuration cannot be read",
            where=str(path),
            why=str(error) or type(error).__name__,
            fix="correct it, or move it away",
        ) from error
    return found or {}


def asset_path(name: str) -> Path:
    """A bundled file or folder such as `networks/tiny.yaml`: in the wheel, or beside an editable install.

    Raises UserError if there is none of that name, or if the name leads out of the assets.
    """
    package = Path(__file__).resolve().parent
    roots = [package / "assets"]
    # Only a source tree has pyproject.toml there; beside an installed wheel `assets` may be a stranger's.
    if (package.parent / "pyproject.toml").is_file():
        roots.append(package.parent / "assets")
    for root in roots:
        candidate = (root / name).resolve()
        if candidate.is_relative_to(root) and candidate.exists():
            return candidate
    raise UserError(
        f"there is no bundled file {name!r}",
        why=f"looked in {', '.join(str(root) for root in roots)}",
        fix="reinstall dcnr-app if it should be there",
    )


def quiet_libraries() -> None:
    """Keep gRPC's own log lines off stderr, unless they were asked for: call it before gRPC is loaded."""
    if _is_traced():  # a parent's setting for a process that reads them
        os.environ.update(GRPC_VERBOSITY=_QUIET, GRPC_TRACE="")
    os.environ.setdefault("GRPC_VERBOSITY", _QUIET)


def trace_handshakes() -> bool:
    """Let gRPC say why it refuses handshakes, for `cluster.grpc_refusals` to read: call it before gRPC is
    loaded. Returns whether it does; not where somebody asked for gRPC's lines as they are, nor on Windows."""
    os.environ.update(_tracing())
    return _is_traced()


def _is_traced() -> bool:
    return all(os.environ.get(name) == value for name, value in _TRACED)


def _tracing() -> dict[str, str]:
    is_ours = os.environ.get("GRPC_VERBOSITY", _QUIET) == _QUIET and sys.platform != "win32"
    return dict(_TRACED) if is_ours else {}


def child_environment() -> dict[str, str]:
    """The whole environment of a PNode process: this one's, with single-threaded BLAS, and with gRPC's words
    about handshakes, which the process reads.

    The engine spreads fixed tiles over threads of its own; a BLAS that does so too would make results depend
    on the number of cores.
    """
    single = dict.fromkeys(
        ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
    )
    return {**os.environ, **single, **_tracing()}
