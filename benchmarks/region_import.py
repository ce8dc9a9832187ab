"""Importing regions from a TSV file of bottom-up attention: time, and the most memory that the import holds.

The file is written row by row before the clock starts, and is removed at the end, as is the store.
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import os
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from .measure import peak_memory


def write_tsv(path: Path, images: int, regions: int, size: int, seed: int = 0) -> None:
    """*images* rows of *regions* boxes and features of *size* numbers; the features are drawn from a pool."""
    rng = np.random.default_rng(seed)
    pool = rng.random((64, regions, size), np.float32)
    with open(path, "wb") as file:
        for number in range(images):
            width, height = (int(side) for side in rng.integers((400, 200), (640, 380)))
            corners = np.sort(rng.random((regions, 2, 2), np.float32), axis=1) * np.float32((width, height))
            corners[0] = (0, 0), (width, height)
            fields = [str(value).encode() for value in (number, width, height, regions)]
            fields += [base64.b64encode(values.tobytes()) for values in (corners, pool[number % len(pool)])]
            file.write(b"\t".join(fields) + b"\r\n")


def run_import(source: Path, out: Path, workers: int, connection: Connection) -> None:
    """Import in this process, and send seconds, MB above what it held before, images and regions."""
    from fairseq_grounding.data.importers import IMPORTERS, import_regions

    before, start = peak_memory(), time.perf_counter()
    written = import_regions(IMPORTERS["butd-tsv"](source), out, workers=workers)
    connection.send((time.perf_counter() - start, peak_memory() - before, written.images, written.rows))


def measured(source: Path, workers: int) -> dict[str, float]:
    """The figures of one import, in a process of its own."""
    # a fresh interpreter: the peak of a fork would count what its parent has held
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        process = context.Process(target=run_import, args=(source, Path(folder) / "regions.h5", workers, theirs))
        process.start()
        theirs.close()
        seconds, memory, images, rows = ours.recv()
        process.join()
    return {"seconds": seconds, "memory": memory, "images": images, "regions": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=30000, help="rows of the file (default: 30,000)")
    parser.add_argument("--regions", type=int, default=10, help="regions an image (default: 10)")
    parser.add_argument("--size", type=int, default=64, help="numbers a feature vector (default: 64)")
    parser.add_argument("--workers", type=int, default=1, help="processes that decode (default: 1)")
    parser.add_argument("--folder", type=Path, help="where to put the files (default: the system's temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        source = Path(folder) / "regions.tsv"
        found: list[dict[str, float]] = []
        # a tenth of the images beside all: memory that grew with them would show
        for images in (max(1, args.images // 10), args.images):
            write_tsv(source, images, args.regions, args.size)
            found.append({**measured(source, args.workers), "file": os.path.getsize(source) / 2**20})
    for result in found:
        print(
            f"{result['images']:,} images x {args.regions} regions x {args.size}, {result['file']:.0f} MB of TSV, "
            f"{args.workers} workers: {result['seconds']:.1f} s, {result['images'] / result['seconds']:.0f} images/s, "
            f"peak memory {result['memory']:.0f} MB above the interpreter's own",
            flush=True,
        )
    print(json.dumps(found[-1]))


if __name__ == "__main__":
    main()
