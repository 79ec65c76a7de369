"""`dcnr-app limits`: show and set what this machine's owner lets the app use, and when."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from dcnr_app.cli.output import json_option, pairs, say, show_bytes, write_json, write_text

if TYPE_CHECKING:
    from dcnr_app.cluster.limits import Verdict
    from dcnr_app.limits import Limits

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)[iI]?[bB]?")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_NONE = ("none", "off", "all")
_MOST_BYTES, _MOST_CORES = 10**18, 4096


def _size(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Callback of a size: bytes of `8GB` or `500M`; 0 for `none`. Raises click.BadParameter."""
    del ctx, parameter
    if value is None:
        return None
    if value.lower() in _NONE:
        return 0
    found = _SIZE.fullmatch(value.strip())
    n_bytes = int(float(found[1]) * _UNITS[found[2].lower()]) if found else 0
    if not 1 <= n_bytes <= _MOST_BYTES:
        raise click.BadParameter(f"{value!r} is not a size such as 8GB, 500MB or none")
    return n_bytes


def _cores(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Callback of a number of cores; 0 for `none`. Raises click.BadParameter."""
    del ctx, parameter
    if value is None:
        return None
    if value.lower() in _NONE:
        return 0
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= _MOST_CORES:
        raise click.BadParameter(f"{value!r} is not a number of cores such as 4, or none")
    return int(value)


@click.group("limits", epilog="Example: dcnr-app limits set --cores 4 --hours 22:00-07:00")
def command() -> None:
    """What this machine's owner lets the app use, and when."""


@command.command("show", epilog="Example: dcnr-app limits show --json")
@json_option
def show_command(*, as_json: bool) -> None:
    """Show the limits, and whether they allow work at this moment."""
    from dcnr_app.cluster.presence import verdict_now
    from dcnr_app.settings import find_home, load_limits

    limits = load_limits(find_home())
    _tell(limits, verdict_now(limits), as_json=as_json)


@command.command("set", epilog="Example: dcnr-app limits set --memory 8GB --no-on-battery")
@click.option("--cores", callback=_cores, help="Cores that all PNodes here may use together, or none.")
@click.option("--memory", callback=_size, help="Memory that all PNodes here may take together, or none.")
@click.option("--device-memory", callback=_size, help="Memory of each graphics device, or none.")
@click.option("--hours", help="Local time in which to work, as 22:00-07:00, or none.")
@click.option("--on-battery/--no-on-battery", default=None, help="Whether to work on battery.")
@click.option(
    "--full-screen/--no-full-screen", default=None, help="Whether to work beside a full-screen program."
)
@json_option
def set_command(*, as_json: bool, **options: Any) -> None:
    """Change some limits; the others stay.

    An agent that runs keeps to hours, battery and full screen at once; to cores and memory from the next
    `dcnr-app up` on.
    """
    from dcnr_app.cluster.presence import verdict_now
    from dcnr_app.errors import UserError
    from dcnr_app.limits import check_limits
    from dcnr_app.settings import find_home, load_limits, save_limits

    given = {name: value for name, value in options.items() if value is not None}
    if not given:
        raise UserError("nothing to set", fix="dcnr-app limits set --help")
    home = find_home()
    limits = check_limits(_changed(load_limits(home), given))
    save_limits(home, limits)
    _tell(limits, verdict_now(limits), as_json=as_json)


def _changed(limits: Limits, given: dict[str, Any]) -> Limits:
    import msgspec

    fields = {
        "cores": "cores",
        "memory": "memory_bytes",
        "device_memory": "device_memory_bytes",
        "hours": "hours",
        "on_battery": "on_battery",
        "full_screen": "during_full_screen",
    }
    changes: dict[str, Any] = {}
    for name, value in given.items():
        if name == "hours":
            value = "" if value.lower() in _NONE else value
        elif name in ("cores", "memory", "device_memory"):
            value = value or None
        changes[fields[name]] = value
    return msgspec.structs.replace(limits, **changes)


def _tell(limits: Limits, verdict: Verdict, *, as_json: bool) -> None:
    import msgspec

    if as_json:
        form = {name: getattr(limits, name) for name in limits.__struct_fields__}
        write_json({**form, "allowed_now": verdict.is_allowed, **msgspec.to_builtins(verdict)})
        return

    def size(n_bytes: int | None) -> str:
        return "no limit" if n_bytes is None else show_bytes(n_bytes)

    shown = {
        "cores": limits.cores or "no limit",
        "memory": size(limits.memory_bytes),
        "device memory": size(limits.device_memory_bytes),
        "hours": limits.hours or "always",
        "on battery": "yes" if limits.on_battery else "no",
        "beside a full-screen program": "yes" if limits.during_full_screen else "no",
        "now": "allowed" if verdict.is_allowed else f"not allowed: {verdict.reason}",
    }
    write_text(pairs(shown))
    for what in verdict.unknown:
        say(f"not known on this system: {what}; that limit has no effect here")
