"""Milliseconds a word of each way to explain, beside one forward pass: ``python -m benchmarks.explanations``.

Up-Down at the size of the published training, captions of 8 to 17 tokens, all words of a batch at once.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from fairseq_grounding.explain import METHODS, explain

from .captioner_step import Sizes, make_inputs, make_model


def measured(run: Callable[[], Any], runs: int) -> tuple[float, float]:
    """Seconds, and seconds of processor, of the fastest of *runs* after one that does not count."""
    run()
    found = []
    for _ in range(runs):
        wall, processor = time.perf_counter(), time.process_time()
        run()
        found.append((time.perf_counter() - wall, time.process_time() - processor))
    return min(wall for wall, _ in found), min(processor for _, processor in found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.explanations", description=__doc__)
    parser.add_argument("--images", type=int, default=16, help="captions in the batch, one an image (default: 16)")
    parser.add_argument("--runs", type=int, default=3, help="counted runs (default: 3)")
    parser.add_argument("--steps", type=int, default=32, help="points of integrated gradients (default: 32)")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="NAME", help="default: all")
    args = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sizes = Sizes(images=args.images, captions=1)
    words, net_input, target = make_inputs(sizes)
    model = make_model(sizes, words).eval()
    sample = {"net_input": net_input, "target": target}
    count = int(target.ne(words.pad()).sum())

    def forward() -> None:
        with torch.no_grad():
            model(**net_input)

    print(f"{count} words of {sizes.images} captions, torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print("| | ms a word | ms of processor a word | forward passes |")
    print("|---|---|---|---|")
    rows: dict[str, Callable[[], Any]] = {"one forward pass": forward}
    rows.update(
        {method: lambda method=method: explain(model, sample, method, steps=args.steps) for method in args.methods}
    )
    base = None
    for name, run in rows.items():
        wall, processor = measured(run, args.runs)
        base = processor if base is None else base
        figures = f"{1000 * wall / count:.2f} | {1000 * processor / count:.2f} | {processor / base:.1f}"
        print(f"| {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
