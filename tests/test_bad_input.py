"""What a user gets wrong at fairseq's commands: one line that says what to do, and exit code 1."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from fairseq_grounding.cli import main
from fairseq_grounding.data.regions import RegionWriter
from fairseq_grounding.errors import GroundingError, mendable

from . import commands

MATCHING = ("--batch-size", "16", "--max-update", "1")
CAPTIONER = ("--criterion", "cross_entropy", "--batch-size", "16", "--max-update", "1")


@pytest.fixture(scope="module")
def runs(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    commands.train(toy_folder, runs / "pos_scan", "pos_scan", *MATCHING)
    commands.train(toy_folder, runs / "up_down", "up_down", *CAPTIONER)
    return runs


@pytest.fixture
def wide_store(toy_data, tmp_path: Path) -> Path:
    """The toy regions with features of twice the width."""
    wide = tmp_path / "wide.h5"
    with h5py.File(toy_data.regions) as old, h5py.File(wide, "w") as new:
        for name in old:
            values = old[name][:]
            new[name] = np.hstack([values, values]) if name == "features" else values
        new.attrs.update(old.attrs)
        new.attrs["feature_size"] = 24
    return wide


def refused(function, *arguments: object) -> str:
    """The line that a user would see."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 (fairseq wraps some of ours)
        function(*arguments)
    error = mendable(caught.value)
    assert error is not None, caught.value
    assert "\n" not in str(error)
    return str(error)


def test_features_of_another_width(toy_folder: Path, runs: Path, wide_store: Path) -> None:
    checkpoint = runs / "up_down" / "checkpoint_last.pt"
    said = refused(commands.generate, toy_folder, checkpoint, "--regions", str(wide_store))
    assert "width 12" in said
    assert f"{wide_store} has width 24" in said


def test_resuming_on_features_of_another_width(toy_folder: Path, runs: Path, wide_store: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "up_down", tmp_path / "run")
    flags = (*CAPTIONER, "--max-update", "2", "--regions", str(wide_store))
    assert "width 12, this model of width 24" in refused(
        commands.train, toy_folder, tmp_path / "run", "up_down", *flags
    )


def test_teacher_on_features_of_another_width(toy_folder: Path, runs: Path, wide_store: Path, tmp_path: Path) -> None:
    teacher = ("--teacher-path", str(runs / "pos_scan" / "checkpoint_last.pt"), "--regions", str(wide_store))
    flags = (*teacher, "--criterion", "kl_attention_distill", "--batch-size", "16", "--max-update", "1")
    said = refused(commands.train, toy_folder, tmp_path / "run", "up_down", *flags)
    assert "was trained on features of width 12, the region store has 24" in said


@pytest.mark.parametrize(
    ("teacher", "what"),
    [
        ("up_down/checkpoint_last.pt", "holds the captioner up_down"),
        ("nowhere.pt", "no such file"),
        ("noise.pt", "is not a checkpoint"),
        ("half.pt", "is not a checkpoint"),
        ("text.pt", "is not a checkpoint"),
    ],
)
def test_a_teacher_that_is_none(toy_folder: Path, runs: Path, tmp_path: Path, teacher: str, what: str) -> None:
    (runs / "noise.pt").write_bytes(b"noise")
    (runs / "half.pt").write_bytes((runs / "pos_scan" / "checkpoint_last.pt").read_bytes()[:5000])
    (runs / "text.pt").write_text((toy_folder / "dict.txt").read_text())
    flags = ("--criterion", "kl_attention_distill", "--teacher-path", str(runs / teacher))
    said = refused(commands.train, toy_folder, tmp_path / "run", "up_down", *flags, "--batch-size", "16")
    assert said.startswith(f"--teacher-path {runs / teacher}: ")
    assert what in said


def test_distillation_without_a_teacher(toy_folder: Path, tmp_path: Path) -> None:
    flags = ("--criterion", "kl_attention_distill", "--batch-size", "16")
    assert "give --teacher-path" in refused(commands.train, toy_folder, tmp_path / "run", "up_down", *flags)


def with_words(folder: Path, rename: dict[str, str]) -> None:
    """Give some words of a prepared folder's dictionary other names."""
    lines = (folder / "dict.txt").read_text().splitlines()
    words = [line.split() for line in lines]
    (folder / "dict.txt").write_text("".join(f"{rename.get(word, word)} {count}\n" for word, count in words))


@pytest.mark.parametrize(("renamed", "accepted"), [(("toucan",), True), (("dog", "cat", "ball"), False)])
def test_teacher_with_another_dictionary(
    toy_folder: Path, runs: Path, tmp_path: Path, renamed: tuple[str, ...], accepted: bool
) -> None:
    folder = tmp_path / "data" / "prepared"
    shutil.copytree(toy_folder.parent, folder.parent)
    if accepted:
        # one more word, first in the list, shifts every other word's number
        dictionary = folder / "dict.txt"
        dictionary.write_text("toucan 1\n" + dictionary.read_text())
        meta = json.loads((folder / "meta.json").read_text())
        meta["dictionary_size"] += 1
        (folder / "meta.json").write_text(json.dumps(meta))
    else:
        with_words(folder, {word: f"x{word}" for word in renamed})
    flags = ("--criterion", "kl_attention_distill", "--batch-size", "16", "--max-update", "1")
    teacher = ("--teacher-path", str(runs / "pos_scan" / "checkpoint_last.pt"))
    if accepted:
        commands.train(folder, tmp_path / "run", "up_down", *flags, *teacher)
    else:
        said = refused(commands.train, folder, tmp_path / "run", "up_down", *flags, *teacher)
        assert "of the training tokens, less than 95%" in said


def test_generation_with_another_dictionary(toy_folder: Path, runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "prepared"
    shutil.copytree(toy_folder.parent, folder.parent)
    with_words(folder, {"dog": "hound"})
    said = refused(commands.generate, folder, runs / "up_down" / "checkpoint_last.pt")
    assert "trained with another dictionary" in said


@pytest.mark.parametrize(
    ("arch", "flags", "what"),
    [
        ("up_down", ("--criterion", "image_text_triplet"), "trains a matching model"),
        ("scan", ("--criterion", "cross_entropy"), "train it with --criterion image_text_triplet"),
    ],
)
def test_criterion_of_the_other_kind(
    toy_folder: Path, tmp_path: Path, arch: str, flags: tuple[str, ...], what: str
) -> None:
    assert what in refused(commands.train, toy_folder, tmp_path / "run", arch, *flags, "--batch-size", "16")


@pytest.mark.parametrize(
    ("arch", "flags", "what"),
    [
        ("scan", ("--items", "image"), "--items image hands out images without captions"),
        ("up_down", ("--items", "image", "--criterion", "cross_entropy"), "--items image hands out images"),
        ("scan", ("--max-regions", "0"), "--max-regions 0: give at least 1"),
        ("scan", ("--max-target-positions", "1"), "--max-target-positions 1: give at least 2"),
        ("scan", ("--margin", "-1"), "--margin -1.0: give more than 0"),
        ("scan", ("--temperature", "0"), "--temperature 0.0: give more than 0"),
        ("scan", ("--joint-size", "0"), "--joint-size 0: give at least 1"),
        ("dvsa", ("--dropout", "2"), "--dropout 2.0: give 0 or more, and less than 1"),
        ("multihead_attention", ("--attention-heads", "0"), "--attention-heads 0: give at least 1"),
        ("multimodal_rnn", ("--hidden-size", "-1"), "--hidden-size -1: give at least 1"),
        ("scan", ("--direction", "i2t", "--noun-attention", "after"), "--direction i2t averages regions"),
        ("scan", ("--best-checkpoint-metric", "rsum"), "rsum is logged only with --eval-retrieval"),
        ("scan", ("--best-checkpoint-metric", "cider"), "cider is logged only with --eval-caption-metrics"),
    ],
)
def test_flags_that_make_no_sense(
    toy_folder: Path, tmp_path: Path, arch: str, flags: tuple[str, ...], what: str
) -> None:
    assert what in refused(commands.train, toy_folder, tmp_path / "run", arch, *flags, "--batch-size", "16")


def test_attention_weight_below_zero(toy_folder: Path, runs: Path, tmp_path: Path) -> None:
    teacher = ("--teacher-path", str(runs / "pos_scan" / "checkpoint_last.pt"), "--attention-weight", "nan")
    flags = ("--criterion", "kl_attention_distill", "--batch-size", "16", *teacher)
    assert "--attention-weight nan" in refused(commands.train, toy_folder, tmp_path / "run", "up_down", *flags)


def test_boxes_wanted_where_none_are(toy_data, make_toy_data, tmp_path: Path) -> None:
    from fairseq_grounding.data.prepare import prepare_captions

    prepare_captions(toy_data.captions, toy_data.regions, tmp_path / "data", threshold=1)
    said = refused(commands.train, tmp_path / "data", tmp_path / "run", "up_down", *CAPTIONER, "--eval-grounding")
    assert "--eval-grounding" in said
    assert "--entities" in said


def test_a_store_that_lacks_an_image(toy_folder: Path, tmp_path: Path) -> None:
    with RegionWriter(tmp_path / "one.h5") as writer:
        writer.add("toy00", np.ones((2, 12), np.float32), np.array([[0, 0, 5, 5], [1, 1, 9, 9]], np.float32), (10, 10))
    said = refused(
        commands.train, toy_folder, tmp_path / "run", "up_down", *CAPTIONER, "--regions", str(tmp_path / "one.h5")
    )
    assert "toy16" in said  # the first of the validation split, which is loaded first
    assert "one.h5" in said


@pytest.mark.parametrize("workers", ["0", "1"])
def test_the_command_says_one_line_and_exits_with_1(toy_folder: Path, toy_data, tmp_path: Path, workers: str) -> None:
    """NaN is met while reading, in another process with one worker."""
    broken = tmp_path / "nan.h5"
    shutil.copy(toy_data.regions, broken)
    with h5py.File(broken, "r+") as file:
        start = int(file["offsets"][3])
        file["features"][start, 0] = np.nan
        name = file["image_ids"][3].decode()
    command = [sys.executable, "-m", "fairseq_cli.train", str(toy_folder), "--user-dir", commands.PLUGIN]
    command += ["--task", "grounded_caption", "--arch", "scan", "--criterion", "image_text_triplet", "--cpu"]
    command += ["--optimizer", "adam", "--batch-size", "8", "--max-epoch", "1", "--num-workers", workers]
    command += ["--regions", str(broken), "--save-dir", str(tmp_path / "run"), "--no-progress-bar"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert name in line
    assert "nan.h5" in line
    assert "NaN" in line


def test_no_noun_in_a_whole_run(make_toy_data, runs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from fairseq_grounding.data.prepare import prepare_captions

    toy = make_toy_data(tmp_path / "toy")
    # a tagger set to find interjections finds none
    prepare_captions(toy.captions, toy.regions, toy.folder, threshold=1, noun_pos=("INTJ",))
    caplog.set_level(logging.INFO)
    state = commands.train(
        toy.folder,
        tmp_path / "run",
        "up_down",
        *("--criterion", "kl_attention_distill", "--teacher-path", str(runs / "pos_scan" / "checkpoint_last.pt")),
        *("--batch-size", "16", "--max-epoch", "1", "--log-format", "json"),
    )
    records = [record.getMessage() for record in caplog.records if record.name in ("train", "valid")]
    logged = [json.loads(record[record.index("{") :]) for record in records]
    assert {float(entry.get("train_attention_loss", entry.get("valid_attention_loss"))) for entry in logged} == {0.0}
    assert all(bool(torch.isfinite(w).all()) for w in state["model"].values() if w.is_floating_point())


def test_collapse_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    from fairseq_grounding.criterions import image_text_triplet

    class Task:
        epoch = 5
        target_dictionary = None

    criterion = image_text_triplet.ImageTextTripletCriterion(Task(), 0.2, "hardest", 2)
    with caplog.at_level(logging.WARNING):
        for _ in range(image_text_triplet.COLLAPSED_UPDATES - 1):
            criterion._watch(2 * 0.2 * 64 * 1.001, 64)
        criterion._watch(2 * 0.2 * 64 * 0.9, 64)
        for _ in range(image_text_triplet.COLLAPSED_UPDATES - 1):
            criterion._watch(2 * 0.2 * 64, 64)
        assert not caplog.records
        criterion._watch(2 * 0.2 * 64, 64)
    assert "has collapsed" in caplog.text
    assert "--hardest-from-epoch" in caplog.text


def test_worker_errors_keep_their_line() -> None:
    error = GroundingError(
        "Caught GroundingError in worker 0.\nOriginal Traceback (most recent call last):\n"
        '  File "x.py"\nfairseq_grounding.errors.GroundingError: regions.h5: image 7 holds NaN\n'
    )
    assert str(error) == "regions.h5: image 7 holds NaN"


def test_without_fairseq() -> None:
    code = "import sys; sys.modules['fairseq'] = None; import fairseq_grounding"
    root = Path(commands.PLUGIN).parent
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(
        "ImportError: fairseq_grounding needs a fairseq that this Python can import: install"
    )
    code = "import sys; sys.modules['fairseq'] = None; import fairseq_grounding_command as c; sys.exit(c.main())"
    ended = subprocess.run(
        [sys.executable, "-c", code, "inspect", "x"], capture_output=True, text=True, cwd=root, check=False
    )
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert "fairseq-grounding[fairseq]" in ended.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("cache-teacher {data} --teacher-path {checkpoint} --out {data}/train.captions.tsv", "lies in the folder"),
        ("cache-teacher {data} --teacher-path {checkpoint} --out {store}", "is the file"),
        ("align {data} --path {checkpoint} --out {checkpoint}", "is the file"),
        ("align {data} --path {checkpoint} --out {store}", "is the file"),
        ("align {data} --path {checkpoint} --export-snippets {data} --overwrite", "is"),
        ("align {data} --path {checkpoint} --export-snippets {data}/.. --overwrite", "holds"),
        (
            "align {data} --path {checkpoint} --export-snippets {new} --out {new}/a.jsonl --overwrite",
            "lies in the folder",
        ),
        ("describe-regions {data} --path {checkpoint} --out {store}", "is the file"),
        (
            "describe-regions {data} --path {checkpoint} --out {new}/a.jsonl --draw {new} --photographs {new}",
            "lies in the folder",
        ),
        ("figure {checkpoint} --images {new} --image-ids toy00 --out {new}/toy00.png", "lies in the folder"),
        ("draw {checkpoint} --images {new} --out {new}", "is"),
    ],
)
def test_what_is_read_is_never_written_over(
    toy_data, toy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture, command: str, said: str
) -> None:
    shutil.copytree(toy_folder.parent, tmp_path / "toy")
    (tmp_path / "new").mkdir()
    (tmp_path / "model.pt").write_bytes(b"weights")
    places = {
        "data": tmp_path / "toy" / toy_folder.name,
        "store": tmp_path / "toy" / toy_data.regions.name,
        "checkpoint": tmp_path / "model.pt",
        "new": tmp_path / "new",
    }
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main([word.format(**places) for word in command.split()]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f" {said} " in line
    assert line.split(": error: ")[1].startswith("--")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_label_smoothing_beyond_its_range(toy_folder: Path, tmp_path: Path) -> None:
    flags = ("--criterion", "kl_attention_distill", "--label-smoothing", "-1", "--batch-size", "16")
    with pytest.raises(GroundingError, match="--label-smoothing -1"):
        commands.train(toy_folder, tmp_path / "run", "up_down", *flags)
