"""One table from the JSON files that ``fairseq-grounding evaluate ... --json`` writes, as Markdown and CSV.

    python examples/table.py phrase.json gvd.json captions.json
    python examples/table.py OUT/*.json --paper examples/flickr30k_entities/paper.json --table table2 \
        --out OUT/table2.md --csv OUT/table2.csv

A row a run, a column a score, in percent. The run's name is that of its dump, without what says which captions, of
which split and by which seed: ``up_down.seed1.valid.given.jsonl`` and ``up_down.seed2.valid.written.jsonl`` are two
seeds of the run ``up_down``. So dumps are called RUN[.seedN][.train|.valid|.test][.given|.written].jsonl. Of
``evaluate retrieval`` the run is the folder of the checkpoint: OUT/RUN[.seedN]/checkpoint_best.pt; of an ensemble, the
folders with `` + `` between them. Seeds are averaged; the column "seeds" says how many there are, and a figure that
only some of them have says so itself. What was not measured is a dash.

``--paper FILE --table NAME`` takes rows and columns from a file of published figures, puts its figure beside each, and
writes "not run" in rows of which there is no report; runs that it does not know come last. Give it the reports of one
split alone. The file is JSON: ``{"source": "...", NAME: {"table": "Table 2", "columns": ["CIDEr", ...], "rows": {RUN:
["title", 57.1, ...]}}}``, with null or nothing where there is no figure.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

# what is always shown, and what where a report has it
COLUMNS = {
    ("grounding", "phrase"): {"accuracy": "phrase accuracy"},
    ("grounding", "gvd"): {"f1_all": "F1_all", "f1_loc": "F1_loc"},
    ("grounding", "strict"): {"f1_all": "F1_all (strict)", "f1_loc": "F1_loc (strict)"},
    ("captions", None): {"cider": "CIDEr", "bleu4": "BLEU-4", "meteor": "METEOR"},
    ("retrieval", None): {
        **{f"{way}_r{k}": f"{way} R@{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)},
        "rsum": "rsum",
    },
}
MORE_COLUMNS = {
    ("grounding", "gvd"): {"attention_accuracy": "attention accuracy"},
    ("grounding", "strict"): {"attention_accuracy": "attention accuracy (strict)"},
    ("captions", None): {"bleu1": "BLEU-1", "spice": "SPICE"},
}
# shown without being asked for
SHOWN = ("attention accuracy", "attention accuracy (strict)")
# figures that are percent already
PERCENT = {"retrieval"}
FLOORS = {
    "best_possible": "*the best possible with these regions*",
    "top_detection": "*the top detection*",
    "whole_image": "*the whole image*",
    "random_region": "*a random region*",
}
NAME = re.compile(r"(?P<run>.+?)(?:\.seed(?P<seed>\d+))?(?:\.(?:train|valid|test))?(?:\.(?:given|written))?")

Figure = Optional[float]


class BadInput(Exception):
    """One line that says what is wrong with the input."""


@dataclass
class Runs:
    """Column titles in their order, and of each run the figures in percent by column and seed."""

    titles: list[str]
    figures: dict[str, dict[str, dict[str, float]]]
    floors: dict[str, float]

    def cell(self, run: str, title: str) -> tuple[Figure, int]:
        """The mean over seeds, and how many of them have it."""
        values = list(self.figures.get(run, {}).get(title, {}).values())
        return (sum(values) / len(values) if values else None), len(values)

    def seeds(self, run: str) -> int:
        """How many seeds of a run there are, in any column."""
        return len({seed for values in self.figures.get(run, {}).values() for seed in values})


def run_and_seed(name: str) -> tuple[str, str]:
    """The run that a dump or a checkpoint's folder is of, and its seed ("" where the name says none)."""
    found = NAME.fullmatch(name)
    return (found["run"], found["seed"] or "") if found else (name, "")


def collect(reports: dict[str, Any]) -> Runs:
    """All figures of *reports*, by the names of their files."""
    runs = Runs([], {}, {})
    extra = []
    origin: dict[tuple[str, str, str], str] = {}
    for source, report in reports.items():
        kind = (report.get("score"), report.get("protocol")) if isinstance(report, dict) else None
        if kind not in COLUMNS:
            raise BadInput(f"{source}: is no report of evaluate grounding, captions or retrieval (--json)")
        more = MORE_COLUMNS.get(kind, {})
        columns = {**COLUMNS[kind], **more}
        runs.titles += [title for title in COLUMNS[kind].values() if title not in runs.titles]
        extra += [title for title in more.values() if title not in extra]
        for result in report.get("dumps") or report["models"]:
            run, seed = run_and_seed(Path(result["dump"]).stem) if "dump" in result else _of_paths(result["path"])
            own = runs.figures.setdefault(run, {})
            for key, title in columns.items():
                value = result.get(key)
                if value is None:
                    continue
                if (other := origin.setdefault((run, seed, title), source)) != source or seed in own.get(title, {}):
                    which = f"{run}, seed {seed}" if seed else run
                    raise BadInput(f"{source}: {title} of {which} is in {other} too; give one report of it")
                own.setdefault(title, {})[seed] = float(value) * (1 if kind[0] in PERCENT else 100)
        for key, title in FLOORS.items():
            if (value := (report.get("floors") or {}).get(key)) is not None:
                runs.floors[title] = 100 * value
    runs.titles += extra
    return runs


def _of_paths(paths: str) -> tuple[str, str]:
    parts = [run_and_seed(Path(path).parent.name) for path in paths.split(os.pathsep)]
    return " + ".join(run for run, _ in parts), "+".join(seed for _, seed in parts if seed)


@dataclass
class Table:
    """A table to write: the header, and rows of text; *numbers* has the same cells unrounded."""

    header: list[str]
    rows: list[list[str]]
    numbers: list[list[Any]]


def plain_table(runs: Runs) -> Table:
    """All runs in the order of the reports, then what needs no model."""
    measured = {title for own in runs.figures.values() for title in own}
    always = {title for columns in COLUMNS.values() for title in columns.values()}
    titles = [title for title in runs.titles if title in always or (title in SHOWN and title in measured)]
    seeded = any(seed for own in runs.figures.values() for values in own.values() for seed in values)
    table = Table(["model", *(["seeds"] if seeded else []), *titles], [], [])
    for run in runs.figures:
        cells = [runs.cell(run, title) for title in titles]
        seeds = [runs.seeds(run)] if seeded else []
        table.rows.append([run, *map(str, seeds), *(_shown(*cell, runs.seeds(run)) for cell in cells)])
        table.numbers.append([run, *seeds, *(value for value, _ in cells)])
    for title, floor in runs.floors.items():
        values = [floor if column == "phrase accuracy" else None for column in titles]
        table.rows.append([title, *([""] if seeded else []), *(_shown(value, 1, 1) for value in values)])
        table.numbers.append([title.strip("*"), *([""] if seeded else []), *values])
    return table


def paper_table(runs: Runs, paper: dict[str, Any]) -> Table:
    """The rows and columns of a published table, with its figures beside those of the runs."""
    titles, rows = paper["columns"], paper["rows"]
    quoted = [
        [row[n] for row in rows.values() if len(row) > n and row[n] is not None] for n in range(1, len(titles) + 1)
    ]
    digits = [2 if any(round(figure, 1) != figure for figure in column) else 1 for column in quoted]
    table = Table(["run", "model", "seeds"], [], [])
    for title, column in zip(titles, quoted):
        # of a column that the paper has no figure of, it has no column
        table.header += [title, f"{title} (paper)"] if column else [title]
    unknown = [run for run in runs.figures if run not in rows and any(runs.cell(run, title)[1] for title in titles)]
    for run, row in [*rows.items(), *((run, [run]) for run in unknown)]:
        there = any(runs.cell(run, title)[1] for title in titles)
        seeds = runs.seeds(run) if there else 0
        shown, numbers = [run, row[0], str(seeds)], [run, row[0], seeds]
        for place, title in enumerate(titles):
            value, count = runs.cell(run, title)
            shown.append(_shown(value, count, seeds, digits[place]) if there else "not run")
            numbers.append(value if there else "not run")
            if quoted[place]:
                figure = row[place + 1] if len(row) > place + 1 else None
                shown.append(_shown(figure, 1, 1, digits[place]))
                numbers.append(figure)
        table.rows.append(shown)
        table.numbers.append(numbers)
    return table


def _shown(value: Figure, count: int, seeds: int, digits: int = 1) -> str:
    if value is None:
        return "-"
    text = f"{value:.{digits}f}"
    return text if count == seeds else f"{text} ({count} of {seeds} seeds)"


def markdown(table: Table, note: str | None = None) -> str:
    """The table in Markdown; *note* stands under it."""
    lines = [table.header, ["---"] * len(table.header), *table.rows]
    text = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    text = text.replace("| --- |", "|---|").replace(" --- |", "---|")
    return f"{text}\n\n{note}\n" if note else f"{text}\n"


def comma_separated(table: Table) -> str:
    """The table as CSV, figures unrounded, an empty cell where there is none."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table.header)
    writer.writerows([["" if cell is None else cell for cell in row] for row in table.numbers])
    return file.getvalue()


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise BadInput(f"{path}: is not JSON; write it again with --json") from error


def paper_figures(path: Path, name: str) -> tuple[dict[str, Any], str]:
    """One table of a file of published figures, and the line that says where they are from."""
    content = read_json(path)
    tables = [key for key, value in content.items() if isinstance(value, dict)] if isinstance(content, dict) else []
    if name not in tables:
        raise BadInput(f"--table {name}: {path} has {', '.join(tables) or 'no table'}")
    table = content[name]
    titles = {title for columns in (*COLUMNS.values(), *MORE_COLUMNS.values()) for title in columns.values()}
    if unknown := [title for title in table["columns"] if title not in titles]:
        raise BadInput(f"{path}: {name} has the column {unknown[0]!r}, which no report has")
    source = content.get("source", "")
    quotes = any(figure is not None for row in table["rows"].values() for figure in row[1:])
    return table, f"(paper): {table.get('table', name)}. {source}".rstrip() if quotes else source


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        temporary.unlink(missing_ok=True)


def main() -> int:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="*", type=Path, metavar="JSON", help="reports; none: nothing was run yet")
    parser.add_argument("--paper", type=Path, metavar="FILE", help="published figures (see above)")
    parser.add_argument("--table", metavar="NAME", help="which table of --paper")
    parser.add_argument("--list", action="store_true", help="print the names of the table's runs and no more")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the Markdown there")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write CSV, figures unrounded")
    args = parser.parse_args()
    try:
        if (args.paper is None) != (args.table is None):
            raise BadInput("--paper and --table: give both or neither")
        if args.list:
            if args.paper is None:
                raise BadInput("--list: needs --paper and --table")
            print(*paper_figures(args.paper, args.table)[0]["rows"])
            return 0
        if args.paper is None and not args.reports:
            raise BadInput("no report: give the files that evaluate ... --json wrote")
        runs = collect({str(path): read_json(path) for path in args.reports})
        if args.paper is None:
            table, note = plain_table(runs), None
        else:
            figures, note = paper_figures(args.paper, args.table)
            table = paper_table(runs, figures)
        text = markdown(table, note)
        if args.out is not None:
            write(args.out, text)
        if args.csv is not None:
            write(args.csv, comma_separated(table))
    except BadInput as error:
        print(f"table.py: error: {error}", file=sys.stderr)
        return 1
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
