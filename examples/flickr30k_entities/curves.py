"""Figure 3 as curves: scores against the weight of the distilled attention, from the CSV that figure3.sh writes.

    python examples/flickr30k_entities/curves.py OUT/figure3.csv --out OUT/figure3.png

The ending of --out says the form (png, pdf, svg). Needs matplotlib (the extra "figures").
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

SCORES = ("CIDEr", "SPICE", "F1_all", "F1_loc")


def points(rows: list[dict[str, str]], score: str) -> tuple[list[float], list[float]]:
    """Weights and values of a score, of the rows that have it, in the order of weights."""
    found = []
    for row in rows:
        try:
            found.append((float(row["model"].removeprefix("weight ")), float(row[score])))
        except (KeyError, ValueError):
            # not run, or not measured here
            continue
    return [weight for weight, _ in sorted(found)], [value for _, value in sorted(found)]


def main() -> None:
    """Draw one panel a score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, metavar="CSV")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        parser.exit(1, "curves.py: error: needs matplotlib; pip install 'fairseq-grounding[figures]'\n")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with open(args.table, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    curves = {score: points(rows, score) for score in SCORES}
    measured = [score for score, (weights, _) in curves.items() if weights]
    if not measured:
        parser.exit(1, f"curves.py: error: {args.table} holds no score at any weight\n")
    figure, panels = pyplot.subplots(1, len(measured), figsize=(2.6 * len(measured), 2.4), squeeze=False)
    for panel, score in zip(panels[0], measured):
        panel.plot(*curves[score], marker="o", markersize=4)
        panel.set_title(score)
        panel.set_xlabel("weight")
    figure.tight_layout()
    figure.savefig(args.out, dpi=200)
    print(f"{', '.join(measured)} in {args.out}")


if __name__ == "__main__":
    main()
