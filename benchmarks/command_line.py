"""How long the command line takes to answer `--help`, beside an interpreter that does nothing.

Run: python benchmarks/command_line.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

N_RUNS = 10


def median_ms(*arguments: str) -> float:
    """Median wall time in ms of a Python process with these arguments."""
    times = []
    for _ in range(N_RUNS):
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
        times.append(1000.0 * (time.perf_counter() - started))
    return statistics.median(times)


def main() -> None:
    """Print the medians and what the app itself costs."""
    bare, helped = median_ms("-c", "pass"), median_ms("-m", "dcnr_app", "--help")
    print(f"python -c pass         {bare:6.0f} ms")
    print(f"dcnr-app --help        {helped:6.0f} ms   (promise: below 150 ms)")
    print(f"the app's own share    {helped - bare:6.0f} ms")


if __name__ == "__main__":
    main()
