"""The scripts of the paper's tables and figures run from drawn pictures to what they print, in their smoke sizes."""

from __future__ import annotations

import csv
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from .forked import forked_commands

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder that all scripts share, so that none trains what another did, and the environment to run them in."""
    pytest.importorskip("spacy", reason="needs the extra 'text'")
    # a socket's path has to be short
    with tempfile.TemporaryDirectory() as folder, forked_commands(Path(folder)) as environment:
        yield tmp_path_factory.mktemp("smoke"), {**environment, "OMP_NUM_THREADS": "1"}


def run(script: str, smoke: tuple[Path, dict[str, str]], **more: str) -> str:
    out, environment = smoke
    command = [str(EXAMPLES / script), "--smoke", str(out)]
    done = subprocess.run(command, env={**environment, **more}, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stderr


def rows_of(path: Path) -> dict[str, dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return {row["run"]: row for row in csv.DictReader(file)}


def test_table1_has_a_figure_in_each_row(smoke: tuple[Path, dict[str, str]]) -> None:
    run("flickr30k_entities/table1.sh", smoke)
    rows = rows_of(smoke[0] / "table1.csv")
    assert len(rows) == 7
    for row in rows.values():
        assert 0 <= float(row["attention accuracy"]) <= 100
        assert row["seeds"] == "1"
    assert rows["up_down_annotation"]["attention accuracy (paper)"] == "37.17"
    # all is finished: nothing is trained or written again
    assert "training" not in run("flickr30k_entities/table1.sh", smoke)


def test_table2_marks_the_cells_that_were_not_run(smoke: tuple[Path, dict[str, str]]) -> None:
    run("flickr30k_entities/table2.sh", smoke, ROWS="none.none none.cider pos_scan.scan")
    rows = rows_of(smoke[0] / "table2.csv")
    assert len(rows) == 16
    for name in ("up_down", "up_down_sc_cider", "up_down_pos_scan_sc_scan"):
        assert float(rows[name]["CIDEr"]) >= 0
    assert rows["up_down_annotation_sc_cider"]["CIDEr"] == "not run"


def test_table3_ends_in_the_final_model(smoke: tuple[Path, dict[str, str]]) -> None:
    run("flickr30k_entities/table3.sh", smoke)
    row = rows_of(smoke[0] / "table3.csv")["up_down_pos_scan_sc_scan"]
    assert row["CIDEr (paper)"] == "69.3"
    assert float(row["BLEU-1"]) >= 0


def test_figure3_draws_its_curves(smoke: tuple[Path, dict[str, str]]) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'figures'")
    run("flickr30k_entities/figure3.sh", smoke, WEIGHTS="0.1 0.5")
    rows = rows_of(smoke[0] / "figure3.csv")
    assert [name for name, row in rows.items() if row["CIDEr"] != "not run"] == [
        "up_down",
        "up_down_pos_scan",
        "up_down_pos_scan_0.5",
    ]
    assert (smoke[0] / "figure3.pdf").read_bytes().startswith(b"%PDF")
    with Image.open(smoke[0] / "figure3.png") as picture:
        assert picture.width > picture.height > 300


def test_figure4_draws_captions_over_photographs(smoke: tuple[Path, dict[str, str]]) -> None:
    run("flickr30k_entities/figure4.sh", smoke)
    for name in ("figure1", "figure4"):
        assert (smoke[0] / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        with Image.open(smoke[0] / f"{name}.png") as picture:
            assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 100


def test_cocos_table4_scores_captions_alone(smoke: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    # its captioners have other sizes than those of the same names, so a folder of its own; the teachers' are the same
    out = tmp_path / "coco"
    out.mkdir()
    for name in ("data", "regions.h5", "pos_scan", "scan"):
        if (smoke[0] / name).exists():
            os.symlink(smoke[0] / name, out / name)
    run("coco/table4.sh", (out, smoke[1]))
    rows = rows_of(out / "table4.csv")
    assert rows["up_down_sc_cider"]["CIDEr (paper)"] == "125.2"
    for name in ("up_down", "up_down_sc_cider", "up_down_pos_scan", "up_down_pos_scan_sc_scan"):
        assert float(rows[name]["CIDEr"]) >= 0


@pytest.mark.parametrize("script", ["flickr30k_entities/table1.sh", "coco/table4.sh"])
def test_a_script_without_its_data_says_how_it_is_used(script: str) -> None:
    done = subprocess.run([str(EXAMPLES / script)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage:" in done.stderr


@pytest.mark.parametrize("script", ["flickr30k_entities/table1.sh", "coco/table4.sh", "dvsa/run.sh"])
def test_paths_mean_what_they_mean_where_the_script_is_called(script: str, tmp_path: Path) -> None:
    (tmp_path / "fairseq-train").write_text('#!/bin/sh\necho "$1"\nexit 1\n')
    (tmp_path / "fairseq-train").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    command = [str(EXAMPLES / script), "my data", "my runs"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 1
    assert str(tmp_path / "my data") in done.stderr.splitlines()
    assert (tmp_path / "my runs").is_dir()
