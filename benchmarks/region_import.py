"""Importing regions from a TSV file of bottom-up attention: time, and the most memory that the import holds.

The file is written row by row before the clock starts, and is removed at the end, as is the store.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fairseq_grounding.data.importers import IMPORTERS, import_regions

from .measure import peak_memory


def write_tsv(path: Path, images: int, regions: int, size: int, seed: int = 0) -> None:
    """*images* rows of *regions* boxes and features of *size* numbers; the features are drawn from a pool."""
    rng = np.random.default_rng(seed)
    pool = rng.random((64, regions, size), np.float32)
    with open(path, "wb") as file:
        for number in range(images):
            width, height = (int(side) for side in rng.integers((400, 200), (640, 380)))
            corners = np.sort(rng.random((regions, 2, 2), np.float32), axis=1) * np.array((width, height), np.float32)
            corners[0] = (0, 0), (width, height)
            fields = [str(value).encode() for value in (number, width, height, regions)]
            fields += [base64.b64encode(values.tobytes()) for values in (corners, pool[number % len(pool)])]
            file.write(b"\t".join(fields) + b"\r\n")


def run_import(source: Path, workers: int) -> dict[str, float]:
    """Import in this process; seconds, and MB above what it held before (not those of workers)."""
    before, start = peak_memory(), time.perf_counter()
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        written = import_regions(IMPORTERS["butd-tsv"](source), Path(folder) / "regions.h5", workers=workers)
        seconds = time.perf_counter() - start
    peak = peak_memory()
    return {"seconds": seconds, "peak": peak, "more": peak - before, "images": written.images, "regions": written.rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=30000, help="rows of the file (default: 30,000)")
    parser.add_argument("--regions", type=int, default=10, help="regions an image (default: 10)")
    parser.add_argument("--size", type=int, default=64, help="numbers a feature vector (default: 64)")
    parser.add_argument("--workers", type=int, default=1, help="processes that decode (default: 1)")
    parser.add_argument("--folder", type=Path, help="where to put the files (default: the system's temporary folder)")
    parser.add_argument("--file", type=Path, help="import this file in this process, and print figures as JSON")
    args = parser.parse_args()
    if args.file is not None:
        print(json.dumps(run_import(args.file, args.workers)))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        source = Path(folder) / "regions.tsv"
        # a third of the images beside all: memory that grew with them would show
        for images in (max(1, args.images // 3), args.images):
            write_tsv(source, images, args.regions, args.size)
            command = [sys.executable, "-m", __spec__.name, "--file", str(source), "--workers", str(args.workers)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{images:,} images x {args.regions} regions x {args.size}, {source.stat().st_size / 2**20:.0f} MB of "
                f"TSV, workers: {args.workers}; {found['seconds']:.1f} s, {images / found['seconds']:.0f} images/s, "
                f"peak memory {found['peak']:.0f} MB, {found['more']:.0f} MB above that of loading the program",
                flush=True,
            )


if __name__ == "__main__":
    main()
