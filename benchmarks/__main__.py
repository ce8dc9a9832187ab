"""Measure everything and print it as a table: ``python -m benchmarks`` from the root of a checkout."""

from __future__ import annotations

import argparse
import os
import platform

import torch

from .measure import compare, matrix_rate

MEASURED: tuple[tuple[str, str, list[str]], ...] = (
    ("matching scores, t2i", "benchmarks.matching_scores", ["--direction", "t2i"]),
    ("matching scores, i2t", "benchmarks.matching_scores", ["--direction", "i2t"]),
    ("captioner's step", "benchmarks.captioner_step", []),
    ("phrases of 1,000 captions (forward alone)", "benchmarks.alignment", []),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="counted runs in each process (default: 3)")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each implementation (default: 2)")
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="threads of torch (default: torch's own choice)"
    )
    args = parser.parse_args()
    # threads that spin while they wait make figures of a machine that also does something else worthless
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    torch.set_num_threads(args.threads)
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores,"
        f" {args.threads} threads, load {os.getloadavg()[0]:.1f}; float32 matrix products {matrix_rate():.0f} GFLOP/s\n"
    )
    print("| forward and backward | | ours | plain | ratio |")
    print("|---|---|---|---|---|")
    for name, module, options in MEASURED:
        found = compare(module, options, args.runs, args.rounds, args.threads)
        for what, title in (("seconds", "s"), ("processor", "s of processor"), ("memory", "MB")):
            ours, plain = found["ours"][what], found["plain"][what]
            digits = 0 if what == "memory" else 2
            print(f"| {name} | {title} | {ours:.{digits}f} | {plain:.{digits}f} | {plain / ours:.1f} |", flush=True)


if __name__ == "__main__":
    main()
