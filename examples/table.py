"""One Markdown table from the JSON files that ``fairseq-grounding evaluate ... --json`` writes.

    python examples/table.py phrase.json gvd.json captions.json

A row a model (``up_down.given.jsonl`` and ``up_down.written.jsonl`` are one), a column a score, in percent. What was
not measured is a dash.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

COLUMNS = {
    ("grounding", "phrase"): {"accuracy": "phrase accuracy"},
    ("grounding", "gvd"): {"f1_all": "F1_all", "f1_loc": "F1_loc"},
    ("grounding", "strict"): {"f1_all": "F1_all (strict)", "f1_loc": "F1_loc (strict)"},
    ("captions", None): {"cider": "CIDEr", "bleu4": "BLEU-4", "meteor": "METEOR"},
}
FLOORS = {
    "best_possible": "*the best possible with these regions*",
    "top_detection": "*the top detection*",
    "whole_image": "*the whole image*",
    "random_region": "*a random region*",
}
KINDS = (".given", ".written")


def model_name(dump: str) -> str:
    """The dump's file name without what says how its captions came about."""
    name = Path(dump).stem
    for kind in KINDS:
        name = name.removesuffix(kind)
    return name


def collect(reports: list[dict]) -> tuple[list[str], dict[str, dict[str, float | None]]]:
    """Column titles, and for each row its values by title."""
    titles: list[str] = []
    rows: dict[str, dict[str, float | None]] = {}
    for report in reports:
        columns = COLUMNS[report["score"], report.get("protocol")]
        titles += [title for title in columns.values() if title not in titles]
        for result in report["dumps"]:
            row = rows.setdefault(model_name(result["dump"]), {})
            row.update({title: result.get(key) for key, title in columns.items()})
    for report in reports:
        for key, title in FLOORS.items():
            if (value := (report.get("floors") or {}).get(key)) is not None:
                rows[title] = {"phrase accuracy": value}
    return titles, rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path, metavar="JSON")
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in parser.parse_args().reports]
    titles, rows = collect(reports)
    print(f"| model | {' | '.join(titles)} |")
    print(f"|---|{'---|' * len(titles)}")
    for name, row in rows.items():
        cells = [f"{100 * value:.1f}" if (value := row.get(title)) is not None else "-" for title in titles]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
