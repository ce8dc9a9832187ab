"""``fairseq-grounding align``: phrases of a trained matching model, their scores for each beta, and snippets."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq_grounding.align import Phrase, phrases_of
from fairseq_grounding.checkpoints import load_matching_model
from fairseq_grounding.cli import main
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.data.regions import RegionStore
from fairseq_grounding.dump import read_dump

from . import commands
from .conftest import TOY_NOUNS

RANKING = ("--negatives", "all", "--margin", "1", "--batch-size", "20")
BETAS = (0.0, 0.5, 100.0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def dvsa(toy_folder: Path, runs: Path) -> Path:
    vectors = runs / "vectors.txt"
    words = PreparedFolder(toy_folder).dictionary().symbols[4:]
    generator = np.random.default_rng(0)
    rows = (" ".join([word, *(f"{number:.4f}" for number in generator.normal(size=16))]) for word in words)
    vectors.write_text("\n".join(rows) + "\n")
    commands.train(
        *(toy_folder, runs / "dvsa", "dvsa", *RANKING, "--max-epoch", "12", "--no-epoch-checkpoints"),
        *("--word-vectors", str(vectors), "--dropout", "0"),
    )
    # a checkpoint is read where the file is not
    vectors.unlink()
    return runs / "dvsa" / "checkpoint_last.pt"


@pytest.fixture(scope="module", params=["dvsa", "pos_scan"])
def matcher(request: pytest.FixtureRequest, toy_folder: Path, runs: Path) -> Path:
    if request.param == "dvsa":
        return request.getfixturevalue("dvsa")
    commands.train(toy_folder, runs / "pos_scan", "pos_scan", "--batch-size", "16", "--max-epoch", "1")
    return runs / "pos_scan" / "checkpoint_last.pt"


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_phrases_are_runs_of_one_region():
    assert phrases_of([2, 2, 0, 2], [1.0, 2.0, 3.0, 4.0]) == [
        Phrase(0, 2, 2, 3.0),
        Phrase(2, 3, 0, 3),
        Phrase(3, 4, 2, 4),
    ]
    assert phrases_of([-1, 3, -1, 3, -1, 1], [9, 1, 9, 1, 9, 1]) == [Phrase(1, 4, 3, 2), Phrase(5, 6, 1, 1)]
    assert phrases_of([-1, -1], [1, 1]) == phrases_of([], []) == []


def test_a_row_for_each_caption_and_beta(toy_folder: Path, matcher: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "phrases.jsonl"
    assert run("align", toy_folder, "--path", matcher, "--beta", "0,0.5,100", "--out", out, "--batch-size", 7) == 0
    rows = list(read_dump(out))
    split, store = PreparedFolder(toy_folder).split("test"), RegionStore(PreparedFolder(toy_folder).regions_path)
    assert [(row["id"], row["beta"]) for row in rows] == [(n, beta) for n in range(20) for beta in BETAS]
    model = load_matching_model(matcher, "--path")
    for row in rows:
        boxes = store.boxes(store.index(row["image_id"]))
        nouns = split.nouns[row["id"]][:-1].bool().tolist()
        aligned = nouns if model.nouns_only else [True] * len(nouns)
        regions = [step["region"] for step in row["steps"]]
        assert [region is not None for region in regions] == aligned
        words = row["text"].split()
        for phrase in row["phrases"]:
            start, stop = phrase["span"]
            assert phrase["text"] == " ".join(words[start:stop])
            assert set(regions[start:stop]) <= {phrase["region"], None}
            assert phrase["box"] == pytest.approx(boxes[phrase["region"]].tolist(), abs=1e-4)
        assert all(before["region"] != after["region"] for before, after in pairwise(row["phrases"]))
        for step in row["steps"]:
            weights = step["attention"]
            if weights is not None:
                assert weights == [float(n == step["region"]) for n in range(len(boxes))]
        if row["beta"] == 100:
            assert len(row["phrases"]) == 1
        # the energy of what the row says, from the phrases alone
        agreeing = sum(aligned) - len(row["phrases"])
        own = sum(phrase["score"] for phrase in row["phrases"])
        assert row["energy"] == pytest.approx(own + row["beta"] * agreeing, abs=1e-3)
    by_beta = {beta: [row for row in rows if row["beta"] == beta] for beta in BETAS}
    for sharp, smooth in ((0.0, 0.5), (0.5, 100.0)):
        for first, second in zip(by_beta[sharp], by_beta[smooth]):
            assert len(second["phrases"]) <= len(first["phrases"])
            assert sum(p["score"] for p in second["phrases"]) <= sum(p["score"] for p in first["phrases"]) + 1e-4
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["beta", "captions", "phrases", "words", "a", "phrase", "energy", "a", "caption"]
    assert [line.split()[:2] for line in printed[1:4]] == [["0", "20"], ["0.5", "20"], ["100", "20"]]


def test_each_beta_is_scored(toy_folder: Path, dvsa: Path, tmp_path: Path, capsys) -> None:
    out, report = tmp_path / "phrases.jsonl", tmp_path / "report.json"
    assert run("align", toy_folder, "--path", dvsa, "--beta", "0,0.5,100", "--out", out) == 0
    store = PreparedFolder(toy_folder).regions_path
    flags = ("--data", toy_folder, "--protocol", "phrase", "--bootstrap", 0)
    assert run("evaluate", "grounding", out, *flags, "--regions", store, "--json", report) == 0
    results = json.loads(report.read_text())["dumps"]
    assert [result["beta"] for result in results] == list(BETAS)
    assert all(result["phrases_missing"] == result["rows_ignored"] == 0 for result in results)
    for beta, result in zip(BETAS, results):
        alone = tmp_path / "alone.jsonl"
        assert run("align", toy_folder, "--path", dvsa, "--beta", beta, "--out", alone) == 0
        assert run("evaluate", "grounding", alone, *flags, "--json", report) == 0
        (same,) = json.loads(report.read_text())["dumps"]
        assert (same["hits"], same["phrases"]) == (result["hits"], result["phrases"])
    assert f"{out}, beta 0.5" in capsys.readouterr().out


def test_dvsa_is_a_matching_model_like_any_other(toy_folder: Path, dvsa: Path, tmp_path: Path) -> None:
    figures = commands.validate(toy_folder, dvsa, "--eval-retrieval", "--valid-subset", "valid")
    assert figures["valid_rsum"] > 0
    dump = tmp_path / "dump.jsonl"
    flags = ("--gen-subset", "test", "--score-reference", "--print-alignment", "hard", "--readout", "similarity")
    printed = commands.generate(toy_folder, dvsa, *flags, "--grounding-dump", str(dump))
    rows = list(read_dump(dump))
    assert len(rows) == len(commands.lines_of(printed, "A")) == 20
    for row in rows:
        for step in row["steps"]:
            assert sum(step["attention"]) == pytest.approx(1, abs=1e-4)
    for readout in ("normalised", "similarity"):
        state = commands.train(
            *(toy_folder, tmp_path / readout, "up_down", "--criterion", "kl_attention_distill", "--batch-size", "20"),
            *("--teacher-path", str(dvsa), "--teacher-readout", readout, "--max-update", "1"),
        )
        assert state["optimizer_history"][-1]["num_updates"] == 1
    state = commands.train(
        *(toy_folder, tmp_path / "scst", "up_down", "--criterion", "scst_cider_scan", "--reward-path", str(dvsa)),
        *("--items", "group", "--batch-size", "4", "--samples-per-image", "2", "--max-update", "1"),
    )
    assert state["optimizer_history"][-1]["num_updates"] == 1


def test_snippets_are_a_prepared_folder_of_regions(toy_folder: Path, dvsa: Path, tmp_path: Path) -> None:
    out, phrases = tmp_path / "snippets", tmp_path / "phrases.jsonl"
    command = ("align", toy_folder, "--path", dvsa, "--split", "train,valid", "--beta", "0.5")
    assert run(*command, "--out", phrases, "--export-snippets", out, "--min-words", 2) == 0
    folder, whole = PreparedFolder(out), PreparedFolder(toy_folder)
    folder.check()
    assert folder.dictionary().symbols == whole.dictionary().symbols
    store, old = RegionStore(folder.regions_path), RegionStore(whole.regions_path)
    assert folder.regions_path == out / "regions.h5"
    expected: dict[str, list[str]] = {}
    for row in read_dump(phrases):
        for phrase in row["phrases"]:
            if phrase["span"][1] - phrase["span"][0] >= 2:
                expected.setdefault(f"{row['image_id']}#{phrase['region']}", []).append(phrase["text"])
    found: dict[str, list[str]] = {}
    for name in ("train", "valid"):
        split = folder.split(name)
        own = set(whole.split(name).image_ids)
        for number, image_id in enumerate(split.image_ids):
            assert image_id.rpartition("#")[0] in own
            assert split.caption_index[number] == len(found.setdefault(image_id, []))
            found[image_id].append(split.texts[number])
            words = [folder.dictionary()[token] for token in split.tokens[number].tolist()]
            assert " ".join(words) == f"{split.texts[number]} </s>"
            assert split.nouns[number].tolist() == [int(word in TOY_NOUNS) for word in words]
    assert found == expected
    assert sorted(store.image_ids) == sorted(expected)
    for n, image_id in enumerate(store.image_ids):
        image, _, region = image_id.rpartition("#")
        features, boxes = old.features(old.index(image)), old.boxes(old.index(image))
        assert store.image_sizes[n].tolist() == old.image_sizes[old.index(image)].tolist()
        assert store.boxes(n).tolist() == [boxes[int(region)].tolist(), [0, 0, *store.image_sizes[n].tolist()]]
        assert np.array_equal(store.features(n)[0], features[int(region)])
        # no region of the toy covers its image
        np.testing.assert_allclose(store.features(n)[1], features.mean(0), atol=2e-3)
    flags = ("--image-vector", "region", "--image-context", "concat", "--criterion", "cross_entropy")
    commands.train(out, tmp_path / "rnn", "multimodal_rnn", *flags, "--batch-size", "50", "--max-update", "2")
    # moved together with its store it is still whole
    shutil.move(str(out), str(tmp_path / "elsewhere"))
    assert PreparedFolder(tmp_path / "elsewhere").regions_path.is_file()


def test_one_word_one_region_and_words_that_nobody_knows(make_toy_data, dvsa: Path, tmp_path: Path, capsys) -> None:
    from fairseq_grounding.data.prepare import prepare_captions
    from fairseq_grounding.data.regions import RegionWriter

    captions = tmp_path / "dataset.json"
    spoken = {"one": ["dog"], "two": ["zebra", "quagga"]}
    training = [{"tokens": ["a", "dog", "is", "near", "the", "cat"], "raw": "A dog is near the cat"}] * 20
    images = [{"filename": "base.jpg", "split": "train", "sentences": training}]
    images += [
        {"filename": f"{name}.jpg", "split": "test", "sentences": [{"tokens": words, "raw": " ".join(words)}]}
        for name, words in spoken.items()
    ]
    captions.write_text(json.dumps({"images": images}))
    with RegionWriter(tmp_path / "regions.h5") as writer:
        for name in ("base", *spoken):
            writer.add(name, np.ones((1, 12), np.float32), np.array([[1, 2, 30, 40]]), (50, 60))
    folder, out = tmp_path / "prepared", tmp_path / "out.jsonl"
    prepare_captions(captions, tmp_path / "regions.h5", folder, threshold=1)
    command = ("align", folder, "--path", dvsa, "--beta", "0,2", "--out", out)
    assert run(*command) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"fairseq-grounding align: error: --path {dvsa}: knows no word of caption 0 of image 'two'; remove it, or leave"
        " such captions out (--skip-bad)"
    )
    assert not out.exists()
    assert run(*command, "--skip-bad") == 0
    rows = list(read_dump(out))
    assert [(row["image_id"], row["beta"]) for row in rows] == [("one", 0.0), ("one", 2.0)]
    assert [row["phrases"][0]["span"] for row in rows] == [[0, 1], [0, 1]]
    assert rows[0]["phrases"][0]["box"] == [1, 2, 30, 40]
    assert "1 captions left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--beta=-1",), "--beta -1: give a finite number of 0 or more; a large one puts a caption on one region"),
        (
            ("--beta", "0,nan"),
            "--beta nan: give a finite number of 0 or more; a large one puts a caption on one region",
        ),
        (("--beta", "0,x"), "--beta 0,x: give numbers with commas between them, such as 0,0.5,1"),
        (("--beta", "1,1.0"), "--beta 1,1.0: give each once, with commas between them"),
        (("--beta", "0,1", "--export-snippets", "s"), "--export-snippets: needs one beta, and --beta 0,1 gives 2"),
        (("--batch-size", "0"), "--batch-size 0: must be at least 1"),
        (("--split", "test,dev"), "{folder}: has no split 'dev', only train, valid, test"),
        (("--out", "nowhere/out"), "--out nowhere/out: its folder does not exist; make it first"),
    ],
)
def test_flags_that_make_no_sense(toy_folder: Path, dvsa: Path, tmp_path: Path, capsys, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    assert run("align", toy_folder, "--path", dvsa, "--out", "out.jsonl", *flags) == 1
    expected = message.format(folder=toy_folder)
    assert capsys.readouterr().err.splitlines()[-1] == f"fairseq-grounding align: error: {expected}"
    assert not list(tmp_path.iterdir())


def test_a_model_that_went_astray_is_refused(toy_folder: Path, dvsa: Path, tmp_path: Path, capsys) -> None:
    state = torch.load(dvsa, weights_only=True)
    state["model"]["region_projection.bias"].fill_(torch.nan)
    torch.save(state, tmp_path / "nan.pt")
    out, snippets = tmp_path / "out.jsonl", tmp_path / "snippets"
    command = ("align", toy_folder, "--path", tmp_path / "nan.pt", "--out", out, "--export-snippets", snippets)
    assert run(*command) == 1
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith(
            "its scores of caption 0 of image 'toy20' are NaN or infinite; training went astray, give another"
            " checkpoint"
        )
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nan.pt"]
    assert run("align", toy_folder, "--path", dvsa) == 1
    assert "nothing to write: give --out FILE, --export-snippets FOLDER, or both" in capsys.readouterr().err
