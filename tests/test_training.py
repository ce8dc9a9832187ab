"""fairseq-train and fairseq-validate on a small prepared folder: matching, captioning, distillation."""

from __future__ import annotations

import json
import logging
import math
import shutil
from pathlib import Path

import pytest
import torch

from . import commands

CAPTIONER = ("--criterion", "cross_entropy", "--items", "group", "--batch-size", "8")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def best_of(log: str, name: str) -> list[float]:
    """The values of one metric in the JSON lines that validation logged."""
    values = []
    for line in log.splitlines():
        if '"valid_loss"' in line:
            values.append(float(json.loads(line[line.index("{") :])[f"valid_{name}"]))
    return values


@pytest.fixture(scope="module")
def pos_scan(toy_folder: Path, runs: Path) -> Path:
    commands.train(toy_folder, runs / "pos_scan", "pos_scan", "--batch-size", "16", "--max-epoch", "6")
    return runs / "pos_scan" / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def cross_entropy(toy_folder: Path, runs: Path) -> Path:
    commands.train(toy_folder, runs / "xe", "up_down", *CAPTIONER, "--max-epoch", "4")
    return runs / "xe" / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def many_images(make_toy_data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough images that a matching model learns what words look like."""
    from fairseq_grounding.data.prepare import prepare_captions

    toy = make_toy_data(tmp_path_factory.mktemp("many"), splits=("train",) * 150 + ("val",) * 20)
    prepare_captions(toy.captions, toy.regions, toy.folder, threshold=1)
    return toy.folder


def test_scan_learns_and_logs_recall(many_images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    state = commands.train(
        many_images,
        tmp_path / "scan",
        "scan",
        *("--batch-size", "32", "--max-epoch", "5", "--hardest-from-epoch", "4", "--no-epoch-checkpoints"),
        *("--eval-retrieval", "--log-format", "json"),
        *("--best-checkpoint-metric", "rsum", "--maximize-best-checkpoint-metric"),
    )
    log = "\n".join(record.getMessage() for record in caplog.records if record.name == "valid")
    rsum = best_of(log, "rsum")
    assert len(rsum) == 5
    # among 20 images and 100 captions chance finds 5% at the first place, both ways
    first = [a + b for a, b in zip(best_of(log, "i2t_r1"), best_of(log, "t2i_r1"))]
    assert max(first) > 35
    recalls = [best_of(log, f"{way}_r{k}") for way in ("i2t", "t2i") for k in (1, 5, 10)]
    assert [sum(values) for values in zip(*recalls)] == pytest.approx(rsum, abs=0.01)
    assert state["extra_state"]["best"] == pytest.approx(max(rsum))
    assert state["cfg"]["model"]["feature_size"] == 12


def test_resuming_equals_going_on(toy_folder: Path, tmp_path: Path) -> None:
    flags = (*CAPTIONER, "--update-freq", "2")
    whole = commands.train(toy_folder, tmp_path / "whole", "up_down", *flags, "--max-epoch", "3")
    commands.train(toy_folder, tmp_path / "parts", "up_down", *flags, "--max-epoch", "1")
    parts = commands.train(toy_folder, tmp_path / "parts", "up_down", *flags, "--max-epoch", "3")
    assert parts["optimizer_history"][-1]["num_updates"] == 3
    for name, weights in whole["model"].items():
        assert torch.equal(weights, parts["model"][name]), name


@pytest.mark.parametrize("arch", ["scan", "pos_scan"])
def test_matching_resumes_in_the_middle_of_an_epoch(toy_folder: Path, tmp_path: Path, arch: str) -> None:
    flags = ("--batch-size", "16")
    whole = commands.train(toy_folder, tmp_path / "whole", arch, *flags, "--max-update", "8")
    commands.train(toy_folder, tmp_path / "parts", arch, *flags, "--max-update", "3")
    parts = commands.train(toy_folder, tmp_path / "parts", arch, *flags, "--max-update", "8")
    for name, weights in whole["model"].items():
        assert torch.equal(weights, parts["model"][name]), name


def test_distillation_moves_attention_to_the_teachers(
    toy_folder: Path, runs: Path, pos_scan: Path, cross_entropy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    state = commands.train(
        toy_folder,
        runs / "distilled",
        "up_down",
        *("--criterion", "kl_attention_distill", "--teacher-path", str(pos_scan), "--teacher-readout", "similarity"),
        *("--attention-weight", "1", "--items", "group", "--batch-size", "8", "--max-epoch", "30"),
        "--no-epoch-checkpoints",
        *("--finetune-from-model", str(cross_entropy), "--log-format", "json"),
    )
    log = "\n".join(record.getMessage() for record in caplog.records if record.name == "valid")
    attention = best_of(log, "attention_loss")
    assert len(attention) == 30
    assert attention[-1] < 0.8 * attention[0]
    assert all(math.isfinite(value) for value in attention)
    # the teacher must travel in no checkpoint of its student
    assert not [name for name in state["model"] if "teacher" in name or "gru" in name]
    assert state["criterion"] is None if "criterion" in state else True


def test_finetuning_starts_from_the_given_weights(
    toy_folder: Path, tmp_path: Path, pos_scan: Path, cross_entropy: Path
) -> None:
    state = commands.train(
        toy_folder,
        tmp_path / "run",
        "up_down",
        *("--criterion", "kl_attention_distill", "--teacher-path", str(pos_scan)),
        *("--batch-size", "16", "--max-update", "1", "--lr", "1e-12"),
        *("--finetune-from-model", str(cross_entropy)),
    )
    before = torch.load(cross_entropy)["model"]
    for name, weights in state["model"].items():
        assert torch.allclose(weights, before[name], atol=1e-6), name


def test_validation_alone_gives_what_training_logged(
    toy_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    flags = ("--criterion", "cross_entropy", "--items", "group", "--batch-size", "2", "--max-epoch", "25")
    metrics = ("--eval-caption-metrics", "--eval-grounding", "--log-format", "json", "--validate-interval", "25")
    commands.train(toy_folder, tmp_path / "run", "up_down", *flags, *metrics, "--save-interval", "25", "--lr", "0.01")
    (record,) = [record.getMessage() for record in caplog.records if record.name == "valid"]
    trained = json.loads(record[record.index("{") :])
    alone = commands.validate(toy_folder, tmp_path / "run" / "checkpoint_last.pt")
    for name in ("cider", "bleu4", "attention_accuracy", "f1_all", "f1_loc", "loss"):
        assert alone[f"valid_{name}"] == pytest.approx(float(trained[f"valid_{name}"]), abs=2e-3), name
    assert alone["valid_cider"] > 0.3
    assert alone["valid_attention_accuracy"] > 0


def test_checkpoint_loads_without_its_folder(toy_folder: Path, tmp_path: Path, pos_scan: Path) -> None:
    from fairseq_grounding.checkpoints import load_matching_model

    lonely = tmp_path / "teacher.pt"
    shutil.copy(pos_scan, lonely)
    model = load_matching_model(lonely, "--teacher-path")
    state = torch.load(lonely)["model"]
    assert torch.equal(model.region_projection.weight, state["region_projection.weight"])
    assert model.words.symbols[model.words.nspecial] in {"a", "is", "the"}
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.nouns_only
