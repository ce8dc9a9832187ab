"""``evaluate retrieval``: every pair scored alone, folds, ensembles, other dictionaries, refusals."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_grounding.checkpoints import load_matching_model
from fairseq_grounding.cli import main
from fairseq_grounding.data.grounded_caption_dataset import GroundedCaptionDataset
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.data.regions import RegionStore, RegionWriter
from fairseq_grounding.dump import read_dump
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.scoring.retrieval import (
    caption_and_image_ranks,
    fold_bounds,
    mean_of_folds,
    recall_at_k,
    retrieval_scores,
    split_ranks,
)

from . import commands

FIGURES = Path(__file__).parent / "figures"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, toy_folder: Path) -> dict[str, Path]:
    """Checkpoints: SCAN t2i and i2t, POS-SCAN on nouns and on adjectives, and DVSA, which adds the whole image."""
    root = tmp_path_factory.mktemp("models")
    few = ("--batch-size", "16", "--max-epoch", "2", "--no-epoch-checkpoints")
    commands.train(toy_folder, root / "t2i", "scan", *few)
    commands.train(toy_folder, root / "i2t", "scan", "--direction", "i2t", "--temperature", "4", *few)
    commands.train(toy_folder, root / "pos", "pos_scan", *few)
    commands.train(toy_folder, root / "adj", "pos_scan", "--ground-pos", "ADJ", *few)
    commands.train(toy_folder, root / "dvsa", "dvsa", *few)
    return {name: root / name / "checkpoint_last.pt" for name in ("t2i", "i2t", "pos", "adj", "dvsa")}


def pair_by_pair(folder: Path, checkpoints: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Scores (I,C) of the test split, each pair in a batch of its own, and the image of each caption."""
    prepared = PreparedFolder(folder)
    dataset = GroundedCaptionDataset(
        prepared.split("test"), RegionStore(prepared.regions_path), prepared.dictionary(), "caption"
    )
    matrices = []
    for checkpoint in checkpoints:
        model = load_matching_model(checkpoint, "--path")
        matrix = np.zeros((len(dataset.image_ids), len(dataset)))
        samples = [dataset.collater([caption]) for caption in range(len(dataset))]
        for image in range(len(matrix)):
            other = samples[int(dataset.first_caption[image])]["net_input"]
            for caption, sample in enumerate(samples):
                with torch.no_grad():
                    encoded = model.encode(
                        *(other[name] for name in ("src_tokens", "features", "boxes", "image_index")),
                        sample["target"],
                        sample["noun_mask"],
                    )
                    matrix[image, caption] = float(model.scores(encoded))
        matrices.append(matrix)
    return np.mean(matrices, axis=0), dataset.image_of_caption


def command(folder: Path, paths: list[Path], out: Path, *flags: str) -> dict[str, Any]:
    arguments = ["evaluate", "retrieval", str(folder), "--path", ":".join(map(str, paths)), "--cpu"]
    assert main([*arguments, "--json", str(out), *flags]) == 0
    return json.loads(out.read_text())["models"][0]


@pytest.mark.parametrize("names", [["t2i"], ["pos"], ["adj"], ["dvsa"], ["pos", "t2i", "i2t"]])
def test_every_pair_alone(
    toy_folder: Path,
    models: dict[str, Path],
    tmp_path: Path,
    names: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from fairseq_grounding import retrieval

    # several blocks of images and captions, the last of another size
    monkeypatch.setattr(retrieval, "IMAGE_BLOCK", 3)
    monkeypatch.setattr(retrieval, "CAPTION_BLOCK", 7)
    given: list[np.ndarray] = []
    score_matrix = retrieval.score_matrix
    monkeypatch.setattr(retrieval, "score_matrix", lambda *args: given.append(score_matrix(*args)) or given[-1])
    paths = [models[name] for name in names]
    report = command(toy_folder, paths, tmp_path / "r.json", "--folds", "2", "--csv", str(tmp_path / "r.csv"))
    expected, owner = pair_by_pair(toy_folder, paths)
    np.testing.assert_allclose(given[0], expected, rtol=1e-5, atol=2e-6)
    assert given[0].dtype == np.float32
    for name, value in recall_at_k(expected, owner).items():
        assert report[name] == pytest.approx(value)
    folds = [recall_at_k(expected[n : n + 2, 5 * n : 5 * n + 10], owner[:10]) for n in (0, 2)]
    for name in folds[0]:
        assert [fold[name] for fold in report["fold_scores"]] == pytest.approx([fold[name] for fold in folds])
        assert report["mean_of_folds"][name] == pytest.approx((folds[0][name] + folds[1][name]) / 2)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0].strip() for line in printed] == [
        *("images", "fold 1", "fold 2", "mean of 2 folds", "all 4 images")
    ]
    with open(tmp_path / "r.csv", newline="") as file:
        queries = list(csv.DictReader(file))
    for way, number in (("i2t", 4), ("t2i", 20)):
        own = [int(row["rank"]) for row in queries if row["way"] == way and row["images"] == "all 4 images"]
        assert len(own) == number
        assert 100 * np.mean(np.array(own) <= 1) == pytest.approx(report[f"{way}_r1"])
        assert np.mean(own) == pytest.approx(report[f"{way}_meanr"])
    assert len([row for row in queries if row["images"].startswith("fold")]) == 24
    assert queries[-1]["image_id"] == "toy23"
    assert queries[-1]["caption"] == "4"


def test_validation_gives_the_same(toy_folder: Path, models: dict[str, Path], tmp_path: Path) -> None:
    logged = commands.validate(toy_folder, models["pos"], "--eval-retrieval")
    report = command(toy_folder, [models["pos"]], tmp_path / "r.json", "--split", "valid")
    for name in ("i2t_r1", "t2i_r5", "t2i_medr", "rsum"):
        assert report[name] == pytest.approx(logged[f"valid_{name}"], abs=1e-3)


def test_the_first_images_alone(toy_folder: Path, models: dict[str, Path], tmp_path: Path) -> None:
    report = command(toy_folder, [models["t2i"]], tmp_path / "r.json", "--images", "2")
    expected, owner = pair_by_pair(toy_folder, [models["t2i"]])
    assert (report["images"], report["captions"]) == (2, 10)
    for name, value in recall_at_k(expected[:2, :10], owner[:10]).items():
        assert report[name] == pytest.approx(value)


def test_another_folders_words_are_read_by_name(toy_folder: Path, models: dict[str, Path], tmp_path: Path) -> None:
    state = torch.load(models["t2i"])
    own = PreparedFolder(toy_folder).dictionary()
    order = np.random.default_rng(1).permutation(len(own) - own.nspecial) + own.nspecial
    words = "\n".join(own.symbols[n] for n in order)
    state["model"]["dictionary"] = torch.tensor(list(words.encode()), dtype=torch.uint8)
    embedding = state["model"]["embedding.weight"]
    embedding[own.nspecial :] = embedding[torch.from_numpy(order)].clone()
    torch.save(state, tmp_path / "other.pt")
    assert command(toy_folder, [tmp_path / "other.pt"], tmp_path / "a.json") == {
        **command(toy_folder, [models["t2i"]], tmp_path / "b.json"),
        "path": str(tmp_path / "other.pt"),
    }


def test_another_region_store(
    toy_folder: Path, models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RegionStore(PreparedFolder(toy_folder).regions_path)
    for width, features in ((12, "zeros"), (5, "narrow")):
        with RegionWriter(tmp_path / f"{features}.h5", source="test") as writer:
            for n, image_id in enumerate(store.image_ids):
                regions = np.full((3, width), 1.0, dtype=np.float32)
                writer.add(str(image_id), regions, np.array([[0, 0, 5, 5]] * 3), tuple(store.image_sizes[n]))
    report = command(toy_folder, [models["t2i"]], tmp_path / "r.json", "--features", str(tmp_path / "zeros.h5"))
    assert report["i2t_r1"] <= 50
    arguments = ["evaluate", "retrieval", str(toy_folder), "--path", str(models["t2i"])]
    assert main([*arguments, "--regions", str(tmp_path / "narrow.h5")]) == 1
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "was trained on features of width 12, the region store has 5" in error


def test_published_mean_ranks() -> None:
    figures = np.load(FIGURES / "i_scan_retrieval.npz")
    result = retrieval_scores(caption_and_image_ranks(figures["sims"], np.arange(60) // 5))
    for way in ("i2t", "t2i"):
        mine = [result[f"{way}_{name}"] for name in ("r1", "r5", "r10", "medr", "meanr")]
        np.testing.assert_allclose(mine, figures[way], rtol=1e-12)


def test_folds_are_neighbouring_images_with_any_number_of_captions() -> None:
    rng = np.random.default_rng(5)
    captions = rng.integers(1, 7, 12)
    first = np.concatenate([[0], np.cumsum(captions)])
    owner = np.repeat(np.arange(12), captions)
    scores = rng.normal(size=(12, len(owner)))
    folds = []
    for start, end in fold_bounds(12, 3):
        inside = (owner >= start) & (owner < end)
        expected = recall_at_k(scores[start:end][:, inside], owner[inside] - start)
        folds.append(retrieval_scores(split_ranks(scores, first, (start, end))))
        assert {name: folds[-1][name] for name in expected} == expected
    assert mean_of_folds(folds)["rsum"] == pytest.approx(np.mean([fold["rsum"] for fold in folds]))
    for images, number in ((12, 5), (2, 4)):
        with pytest.raises(GroundingError, match=f"--folds {number}: does not divide {images} images"):
            fold_bounds(images, number)


def test_refusals(
    toy_folder: Path, models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--criterion", "cross_entropy", "--batch-size", "16", "--max-update", "1", "--no-epoch-checkpoints")
    commands.train(toy_folder, tmp_path / "xe", "up_down", *few)
    captioner = tmp_path / "xe" / "checkpoint_last.pt"
    capsys.readouterr()
    good = str(models["t2i"])
    for path, flags, message in [
        (f"{good}:{captioner}", (), "holds the captioner up_down"),
        (good, ("--folds", "3"), "--folds 3: does not divide 4 images"),
        (good, ("--folds", "1"), "--folds 1: give at least 2"),
        (good, ("--images", "5"), "--images 5: the split 'test'"),
        (good, ("--images", "0"), "--images 0: give at least 1"),
        (good, ("--split", "absent"), "absent"),
        (str(tmp_path / "none.pt"), (), "none.pt: no such file"),
        (":", (), "--path: names no checkpoint"),
        (good, ("--csv", good), "is the file"),
        (good, ("--csv", str(tmp_path / "x"), "--json", str(tmp_path / "x")), "as well"),
    ]:
        assert main(["evaluate", "retrieval", str(toy_folder), "--path", path, "--cpu", *flags]) == 1
        error = capsys.readouterr().err
        assert len(error.splitlines()) == 1
        assert message in error


def test_an_ensemble_attends_as_the_mean_of_those_that_attend(
    toy_folder: Path, models: dict[str, Path], tmp_path: Path
) -> None:
    rows = {}
    for name, path in {**models, "both": f"{models['t2i']}:{models['pos']}"}.items():
        flags = ("--score-reference", "--gen-subset", "test", "--grounding-dump", str(tmp_path / f"{name}.jsonl"))
        commands.generate(toy_folder, Path(path), *flags)
        rows[name] = list(read_dump(tmp_path / f"{name}.jsonl"))
    kinds = set()
    for both, t2i, pos in zip(rows["both"], rows["t2i"], rows["pos"]):
        for mine, one, other in zip(both["steps"], t2i["steps"], pos["steps"]):
            attending = [step["attention"] for step in (one, other) if step["attention"] is not None]
            kinds.add(len(attending))
            np.testing.assert_allclose(mine["attention"], np.mean(attending, axis=0), atol=2e-6)
            assert sum(mine["attention"]) == pytest.approx(1, abs=1e-4)
    assert kinds == {1, 2}, "words with which one model attends, and nouns"
