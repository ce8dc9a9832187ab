"""The table of experiments: reports of several seeds, beside the paper's figures."""

from __future__ import annotations

import csv
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PAPER = EXAMPLES / "flickr30k_entities" / "paper.json"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("examples_table", EXAMPLES / "table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


table = load()


def report(path: Path, score: str, protocol: str | None, dumps: dict[str, dict[str, Any]], **more: Any) -> Path:
    content: dict[str, Any] = {
        "score": score,
        "dumps": [{"dump": name, **each} for name, each in dumps.items()],
        **more,
    }
    if protocol:
        content["protocol"] = protocol
    path.write_text(json.dumps(content))
    return path


def run(*arguments: object) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "table.py"), *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_what_the_demo_prints(tmp_path: Path) -> None:
    phrase = report(
        tmp_path / "phrase.json",
        "grounding",
        "phrase",
        {"o/pos_scan.given.jsonl": {"accuracy": 0.5}, "o/up_down.given.jsonl": {"accuracy": 0.25}},
        floors={"best_possible": 0.9, "top_detection": None, "random_region": 0.1},
    )
    f1 = {"f1_all": 0.031, "f1_loc": 0.2, "attention_accuracy": None}
    gvd = report(tmp_path / "gvd.json", "grounding", "gvd", {"o/up_down.written.jsonl": f1})
    captions = report(tmp_path / "captions.json", "captions", None, {"o/up_down.written.jsonl": {"cider": 0.61}})
    code, printed, _ = run(phrase, gvd, captions)
    assert code == 0
    assert printed.splitlines() == [
        "| model | phrase accuracy | F1_all | F1_loc | CIDEr | BLEU-4 | METEOR |",
        "|---|---|---|---|---|---|---|",
        "| pos_scan | 50.0 | - | - | - | - | - |",
        "| up_down | 25.0 | 3.1 | 20.0 | 61.0 | - | - |",
        "| *the best possible with these regions* | 90.0 | - | - | - | - | - |",
        "| *a random region* | 10.0 | - | - | - | - | - |",
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("up_down.given", ("up_down", "")),
        ("up_down.seed12.valid.written", ("up_down", "12")),
        ("up_down.seed2", ("up_down", "2")),
        ("scan.normalised.valid.given", ("scan.normalised", "")),
        ("up_down_pos_scan_0.05.seed1.test.written", ("up_down_pos_scan_0.05", "1")),
        ("test", ("test", "")),
    ],
)
def test_names(name: str, expected: tuple[str, str]) -> None:
    assert table.run_and_seed(name) == expected


def test_seeds_are_averaged_beside_the_papers_figures(tmp_path: Path) -> None:
    written = {f"up_down.seed{seed}.valid.written.jsonl": {"f1_all": f1} for seed, f1 in ((1, 0.04), (2, 0.07))}
    gvd = report(tmp_path / "gvd.json", "grounding", "gvd", {**written, "mine.written.jsonl": {"f1_all": 0.5}})
    scores = {"cider": 0.5, "bleu1": 0.6, "spice": 0.1}
    captions = report(tmp_path / "captions.json", "captions", None, {"up_down.seed1.valid.written.jsonl": scores})
    out, sheet = tmp_path / "t.md", tmp_path / "t.csv"
    code, printed, _ = run(gvd, captions, "--paper", PAPER, "--table", "table2", "--out", out, "--csv", sheet)
    assert code == 0
    assert out.read_text() == printed
    assert "Table 2" in printed.splitlines()[-1]
    assert "CVPR 2020" in printed.splitlines()[-1]
    lines = [cells(line) for line in printed.splitlines() if line.startswith("|")]
    rows = {line[0]: dict(zip(lines[0], line)) for line in lines[2:]}
    assert rows["up_down"]["seeds"] == "2"
    assert (rows["up_down"]["F1_all"], rows["up_down"]["F1_all (paper)"]) == ("5.50", "5.11")
    assert (rows["up_down"]["CIDEr"], rows["up_down"]["CIDEr (paper)"]) == ("50.0 (1 of 2 seeds)", "57.1")
    assert rows["up_down"]["METEOR"] == "-"
    not_run = rows["up_down_pos_scan_sc_scan"]
    assert (not_run["F1_loc"], not_run["F1_loc (paper)"], not_run["seeds"]) == ("not run", "18.44", "0")
    assert list(rows)[-1] == "mine"
    assert rows["mine"]["F1_all (paper)"] == "-"
    with open(sheet, newline="") as file:
        own = {row["run"]: row for row in csv.DictReader(file)}
    assert float(own["up_down"]["F1_all"]) == pytest.approx(5.5)
    assert own["up_down_pos_scan_sc_scan"]["CIDEr"] == "not run"
    assert own["mine"]["F1_all (paper)"] == own["up_down"]["METEOR"] == ""


def test_retrieval_is_in_percent_already(tmp_path: Path) -> None:
    scores = {**{f"{way}_r{k}": 10.0 * k for way in ("i2t", "t2i") for k in (1, 5, 10)}, "rsum": 320.0}
    path = tmp_path / "retrieval.json"
    models = [{"path": "o/scan.seed3/checkpoint_best.pt:o/pos_scan/checkpoint_best.pt", **scores}]
    path.write_text(json.dumps({"score": "retrieval", "models": models}))
    _, printed, _ = run(path)
    assert cells(printed.splitlines()[2])[:4] == ["scan + pos_scan", "1", "10.0", "50.0"]
    assert cells(printed.splitlines()[2])[-1] == "320.0"


def test_the_papers_figures_are_whole() -> None:
    content = json.loads(PAPER.read_text())
    assert [len(content[f"table{n}"]["rows"]) for n in (1, 2, 3, 4)] == [7, 16, 8, 7]
    for name in ("table1", "table2", "table3", "table4", "figure3"):
        figures, note = table.paper_figures(PAPER, name)
        assert "Zhou" in note
        for row in figures["rows"].values():
            assert len(row) == 1 + len(figures["columns"])


def test_the_papers_figures_are_the_papers(shared: Path) -> None:
    text = (shared / "papers" / "pos_scan_cvpr2020.txt").read_text()
    printed = [[cell.strip().rstrip("%") for cell in line.split("\t")] for line in text.splitlines() if "\t" in line]
    content = json.loads(PAPER.read_text())
    for name in ("table1", "table2", "table3", "table4"):
        for row in content[name]["rows"].values():
            figures = [figure for figure in row[1:] if figure is not None]
            if figures:
                found = [line for line in printed if _numbers(line)[-len(figures) :] == figures]
                assert found, f"{name}: {row}"


def _numbers(line: list[str]) -> list[float]:
    numbers = []
    for cell in line:
        try:
            numbers.append(float(cell))
        except ValueError:
            continue
    return numbers


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    good = report(tmp_path / "gvd.json", "grounding", "gvd", {"a.written.jsonl": {"f1_all": 0.1}})
    again = report(tmp_path / "test.json", "grounding", "gvd", {"a.test.written.jsonl": {"f1_all": 0.2}})
    other = report(tmp_path / "chair.json", "hallucination", None, {"a.written.jsonl": {}})
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for arguments, message in [
        ((), "no report"),
        ((tmp_path / "absent.json",), "absent.json: cannot be read"),
        ((broken,), "broken.json: is not JSON"),
        ((other,), "chair.json: is no report of"),
        ((good, again), "test.json: F1_all of a is in"),
        ((good, "--table", "table2"), "give both or neither"),
        ((good, "--paper", PAPER, "--table", "table9"), "--table table9:"),
        ((good, "--out", tmp_path / "absent" / "t.md"), "t.md: cannot be written"),
    ]:
        code, printed, error = run(*arguments)
        assert code == 1
        assert printed == ""
        assert len(error.splitlines()) == 1
        assert message in error
