"""How soon a broken connection is noticed: reset, and silence both ways and one way, worst of N, as JSON. Not
a test."""

from __future__ import annotations

import argparse
import asyncio
import json

from tests.silence_scene import FAULTS, Fault, notice


async def measure(fault: Fault, trials: int) -> dict[str, float]:
    """All trials at once, each at another phase of its pings."""
    found = await asyncio.gather(*(notice(fault, wait_s=1.3 * n / trials) for n in range(trials)))
    seconds = sorted(each for pair in found for each in pair)
    return {"worst_s": seconds[-1], "median_s": seconds[len(seconds) // 2], "trials": trials}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10)
    trials = parser.parse_args().trials
    print(json.dumps({fault: asyncio.run(measure(fault, trials)) for fault in FAULTS}, indent=2))


if __name__ == "__main__":
    main()
