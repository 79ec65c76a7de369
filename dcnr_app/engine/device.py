"""Facts about the machine: what fixes the bits of a result, and what a person wants to see. Knows no op."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import psutil
from threadpoolctl import threadpool_info

import dcnr_app
from dcnr_app.engine import reference_attention, tiles

CLASS_DIGITS = 12


class DeviceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A machine's processor and memory."""

    processor: str
    n_cores: int
    """Cores that this process may use."""
    memory_bytes: int
    free_memory_bytes: int
    system: str


def device_class(facts: Mapping[str, str]) -> str:
    """A short hash of a backend's facts; equal class means equal bits."""
    lines = "\n".join(f"{name}={facts[name]}" for name in sorted(facts))
    return hashlib.sha256(lines.encode()).hexdigest()[:CLASS_DIGITS]


def reference_facts() -> dict[str, str]:
    """What fixes the bits of the NumPy reference."""
    libraries = sorted(
        "{} {} {}".format(
            library["internal_api"],
            library.get("version") or "unknown",
            library.get("architecture") or "unknown",
        )
        for library in threadpool_info()
        if library["user_api"] == "blas"
    )
    return {
        "engine": "reference",
        "engine_version": dcnr_app.__version__,
        "numpy": np.__version__,
        "blas": "; ".join(libraries) or "none",
        "cpu_features": " ".join(_cpu_features()),
        "machine": platform.machine(),
        "system": platform.system(),
        "tiles": f"linear {tiles.LINEAR_ROWS} elements {tiles.TILE_ELEMENTS} "
        f"queries {reference_attention.QUERY_ROWS} scores {reference_attention.SCORE_ELEMENTS}",
    }


def device_summary() -> DeviceSummary:
    """Name, cores and memory of this machine."""
    memory = psutil.virtual_memory()
    return DeviceSummary(
        processor=_processor_name(),
        n_cores=_usable_cores(),
        memory_bytes=memory.total,
        free_memory_bytes=memory.available,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def _cpu_features() -> list[str]:
    """SIMD features that NumPy's kernels choose by, sorted."""
    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    return sorted({*extensions.get("baseline", []), *extensions.get("found", [])})


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return psutil.cpu_count() or 1


def _processor_name() -> str:
    """The processor's trade name, or the architecture where the system does not tell."""
    if platform.system() == "Linux":
        listing = Path("/proc/cpuinfo")
        if listing.exists():
            for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5)  # noqa: S603  # fixed
        if done.stdout.strip():
            return done.stdout.strip()
    return platform.processor() or platform.machine()
