"""Time and memory of one thing, in a process of its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import torch

IMPLEMENTATIONS = ("ours", "plain")


def peak_memory() -> float:
    """The most memory that this process has held, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def measure(work: Callable[[], object], runs: int) -> dict[str, object]:
    """Seconds of each of *runs* calls after one that is not counted, by the clock and by the processor (all threads),
    and MB above what the process held before."""
    before = peak_memory()
    work()
    seconds, processor = [], []
    for _ in range(runs):
        start, start_processor = time.perf_counter(), time.process_time()
        work()
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - start_processor)
    return {"seconds": seconds, "processor": processor, "memory": peak_memory() - before}


def compare(module: str, options: list[str], runs: int, rounds: int, threads: int) -> dict[str, dict[str, float]]:
    """Run *module* in fresh processes, ours and the plain one in turn so that load on the machine meets both.

    Returns:
        for each implementation the medians of ``seconds`` and ``processor``, and the highest ``memory`` in MB
    """
    results: dict[str, list[dict]] = {name: [] for name in IMPLEMENTATIONS}
    for _ in range(rounds):
        for name in IMPLEMENTATIONS:
            command = [sys.executable, "-m", module, name, "--runs", str(runs), "--threads", str(threads), *options]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            results[name].append(json.loads(done.stdout.splitlines()[-1]))
    return {
        name: {
            "seconds": median(s for result in found for s in result["seconds"]),
            "processor": median(s for result in found for s in result["processor"]),
            "memory": max(result["memory"] for result in found),
        }
        for name, found in results.items()
    }


def matrix_rate(size: int = 2048, runs: int = 5) -> float:
    """Float32 matrix products of this machine in GFLOP/s, the best of *runs*: what figures are compared by."""
    left, right = torch.rand(size, size), torch.rand(size, size)
    left @ right
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        left @ right
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best / 1e9
