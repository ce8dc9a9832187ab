"""Markdown tables of a run of DVSA, with the paper's figures on Flickr30k beside.

    python examples/dvsa/table.py OUT

OUT is the folder that run.sh wrote. The paper's figures are for Flickr30k with features of its own. Its regions were
scored on what people wrote of regions of COCO; here the references are the phrases that the alignment found, so that
the last table says no more than which model is ahead.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

PAPER_RETRIEVAL = {"i2t": (22.2, 48.2, 61.4, 4.8), "t2i": (15.2, 37.7, 50.5, 9.2)}
PAPER_CAPTIONS = {"image_rnn": {"bleu4": 15.7, "meteor": 15.3, "cider": 24.7}}
PAPER_REGIONS = {
    "region_rnn": {"cider": 61.6, "meteor": 15.8, "rouge_l": 35.1},
    "image_rnn_on_regions": {"cider": 20.3, "meteor": 13.3, "rouge_l": 21.0},
}
NAMES = {
    "image_rnn": "whole images",
    "image_rnn_beam1": "whole images, greedy",
    "region_rnn": "trained on regions",
    "image_rnn_on_regions": "trained on whole images",
}
WAYS = {"i2t": "image to sentence", "t2i": "sentence to image"}


def read(path: Path) -> dict[str, Any] | None:
    """A report, or None where it was not written."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def table(title: str, header: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table under a heading."""
    print(f"{title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print()


def percent(value: float | None) -> str:
    """A fraction in percent; a dash for what was not measured."""
    return "-" if value is None else f"{100 * value:.1f}"


def captions(title: str, report: dict[str, Any], paper: dict[str, dict[str, float]], columns: dict[str, str]) -> None:
    """The scores of captions, ours and the paper's."""
    header = ["model", *(f"{name}{whose}" for name in columns.values() for whose in ("", ", paper"))]
    rows = []
    for result in report["dumps"]:
        name = Path(result["dump"]).stem
        cells = [NAMES[name]]
        for key in columns:
            theirs = paper.get(name, {}).get(key)
            cells += [percent(result.get(key)), "-" if theirs is None else f"{theirs:.1f}"]
        rows.append(cells)
    table(title, header, rows)


def main() -> None:
    """Print the tables of what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    out = parser.parse_args().out
    if (report := read(out / "retrieval.json")) is not None:
        (found,) = report["models"]
        rows = []
        for way, name in WAYS.items():
            ours = [f"{found[f'{way}_{key}']:.1f}" for key in ("r1", "r5", "r10", "medr")]
            paper = map(str, PAPER_RETRIEVAL[way])
            rows.append([name, *(cell for pair in zip(ours, paper) for cell in pair)])
        header = [f"{name}{whose}" for name in ("R@1", "R@5", "R@10", "median rank") for whose in ("", ", paper")]
        table(f"Retrieval among {found['images']:,} images (paper: 1,000)", ["", *header], rows)
    if (report := read(out / "phrase.json")) is not None:
        rows = [[f"{result['beta']:g}", percent(result["accuracy"])] for result in report["dumps"]]
        table("Phrases (not in the paper)", ["beta", "phrase accuracy"], rows)
    metrics = {"cider": "CIDEr", "bleu4": "BLEU-4", "meteor": "METEOR"}
    if (report := read(out / "captions.json")) is not None:
        captions("Captions of whole images", report, PAPER_CAPTIONS, metrics)
    if (report := read(out / "snippets.json")) is not None:
        columns = {"cider": "CIDEr", "meteor": "METEOR", "rouge_l": "ROUGE-L"}
        captions("Captions of regions, against aligned phrases", report, PAPER_REGIONS, columns)


if __name__ == "__main__":
    main()
