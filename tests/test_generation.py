"""fairseq-generate: alignment lines, the grounding dump, and attention that does not depend on how it was asked for."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.data.regions import PLACEHOLDER_BOXES, RegionStore
from fairseq_grounding.dump import read_dump
from fairseq_grounding.errors import GroundingError

from . import commands


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def captioner(toy_folder: Path, runs: Path) -> Path:
    flags = ("--criterion", "cross_entropy", "--items", "group", "--batch-size", "4", "--max-epoch", "12")
    commands.train(toy_folder, runs / "xe", "up_down", *flags, "--no-epoch-checkpoints")
    return runs / "xe" / "checkpoint_last.pt"


@pytest.fixture(scope="module", params=["scan", "pos_scan"])
def matcher(request: pytest.FixtureRequest, toy_folder: Path, runs: Path) -> Path:
    save_dir = runs / request.param
    commands.train(toy_folder, save_dir, request.param, "--batch-size", "16", "--max-epoch", "2")
    return save_dir / "checkpoint_last.pt"


def hard(line: str) -> dict[int, int]:
    """From word to region, out of an ``A-`` line."""
    return {int(word): int(region) for region, word in (pair.split("-") for pair in line.split())}


@pytest.mark.parametrize("beam", ["1", "3"])
def test_written_captions(toy_folder: Path, captioner: Path, tmp_path: Path, beam: str) -> None:
    dump = tmp_path / "dump.jsonl"
    flags = ("--items", "image", "--beam", beam, "--max-len-b", "20", "--gen-subset", "test")
    printed = commands.generate(
        toy_folder, captioner, *flags, "--print-alignment", "hard", "--grounding-dump", str(dump)
    )
    soft = commands.generate(toy_folder, captioner, *flags, "--print-alignment", "soft")
    rows = {row["id"]: row for row in read_dump(dump)}
    hypotheses, alignments = commands.lines_of(printed, "H"), commands.lines_of(printed, "A")
    positional, weights = commands.lines_of(printed, "P"), commands.lines_of(soft, "A")
    split = PreparedFolder(toy_folder).split("test")
    store = RegionStore(PreparedFolder(toy_folder).regions_path)
    assert sorted(rows) == sorted(hypotheses) == [0, 1, 2, 3]
    for number, row in rows.items():
        image_id = split.image_ids[5 * number]
        assert row["image_id"] == image_id
        assert (row["model"], row["reference"], row["caption_index"]) == ("up_down", False, None)
        words = hypotheses[number].split("\t")[1].split()
        assert row["tokens"] == words
        assert row["text"] == " ".join(words)
        stored = store.index(image_id)
        boxes = store.boxes(stored)
        pairs = hard(alignments[number])
        columns = [[float(w) for w in column.split(",")] for column in weights[number].split(" ")]
        assert len(columns) == len(words) + 1
        for word, step in enumerate(row["steps"]):
            attention = np.array(step["attention"])
            assert attention.shape == (store.counts[stored],)
            assert attention.sum() == pytest.approx(1, abs=1e-4)
            assert attention == pytest.approx(np.array(columns[word]), abs=2e-6)
            assert step["region"] == int(attention.argmax()) == pairs[word]
            assert step["box"] == pytest.approx(boxes[step["region"]].tolist(), abs=1e-4)
            # fairseq prints logarithms to the base 2
            printed_score = float(positional[number].split()[word]) * np.log(2)
            assert step["logprob"] == pytest.approx(printed_score, abs=1e-3)


def test_given_captions_read_by_a_captioner(toy_folder: Path, captioner: Path, tmp_path: Path) -> None:
    dump = tmp_path / "dump.jsonl"
    flags = ("--score-reference", "--gen-subset", "test")
    printed = commands.generate(
        toy_folder, captioner, *flags, "--print-alignment", "hard", "--grounding-dump", str(dump)
    )
    soft = commands.generate(toy_folder, captioner, *flags, "--print-alignment", "soft", "--batch-size", "3")
    rows = list(read_dump(dump))
    split = PreparedFolder(toy_folder).split("test")
    assert [row["id"] for row in rows] == list(range(20))
    pairs, weights = commands.lines_of(printed, "A"), commands.lines_of(soft, "A")
    for row in rows:
        assert row["text"] == split.texts[row["id"]] == " ".join(row["tokens"])
        assert row["caption_index"] == row["id"] % 5
        assert row["reference"] is True
        assert hard(pairs[row["id"]]) == {word: step["region"] for word, step in enumerate(row["steps"])}
        columns = [[float(w) for w in column.split(",")] for column in weights[row["id"]].split(" ")]
        for step, column in zip(row["steps"], columns):
            assert step["attention"] == pytest.approx(column, abs=2e-6)
        assert all(step["logprob"] < 0 for step in row["steps"])


def test_given_captions_read_by_a_matching_model(toy_folder: Path, matcher: Path, tmp_path: Path) -> None:
    dumps = {}
    for readout in ("normalised", "similarity"):
        dump = tmp_path / f"{readout}.jsonl"
        flags = ("--score-reference", "--gen-subset", "test", "--readout", readout, "--print-alignment", "hard")
        printed = commands.generate(toy_folder, matcher, *flags, "--grounding-dump", str(dump))
        dumps[readout] = list(read_dump(dump))
        pairs = commands.lines_of(printed, "A")
        for row in dumps[readout]:
            looked = {word: step["region"] for word, step in enumerate(row["steps"]) if step["region"] is not None}
            assert hard(pairs[row["id"]]) == looked
    nouns = PreparedFolder(toy_folder).split("test").nouns
    for normalised, similar in zip(*dumps.values()):
        assert normalised["tokens"] == similar["tokens"]
        mask = nouns[normalised["id"]].tolist()[:-1]
        for word, (one, other) in enumerate(zip(normalised["steps"], similar["steps"])):
            assert one["logprob"] is None
            if matcher.parent.name == "pos_scan" and not mask[word]:
                assert one["attention"] is None
                assert one["box"] is None
                continue
            assert sum(one["attention"]) == pytest.approx(1, abs=1e-4)
            assert one["attention"] != other["attention"]


def test_attention_is_the_same_however_it_is_asked_for(toy_folder: Path, captioner: Path, tmp_path: Path) -> None:
    """Decoded alone or in a padded batch, greedily or by reading the same words."""
    from fairseq import checkpoint_utils

    from fairseq_grounding.generation import CaptionScorer

    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(captioner)], arg_overrides={"items": "image", "data": str(toy_folder)}
    )
    model = models[0].eval()
    task.load_dataset("test")
    dataset = task.dataset("test")
    from argparse import Namespace

    generator = task.build_generator([model], Namespace(beam=1, max_len_a=0, max_len_b=20))

    together = generator.generate([model], dataset.collater([0, 1, 2, 3]))
    assert len({len(row[0]["tokens"]) for row in together}) > 1 or len(set(dataset.region_counts)) > 1
    for item in range(4):
        sample = dataset.collater([item])
        regions = int(dataset.region_counts[item])
        alone = generator.generate([model], sample)[0][0]
        assert torch.equal(alone["tokens"], together[item][0]["tokens"])
        assert torch.allclose(alone["attention"], together[item][0]["attention"][:regions], atol=2e-6)
        assert bool((together[item][0]["attention"][regions:] == 0).all())
        sample["target"] = alone["tokens"][None]
        eos = task.target_dictionary.eos()
        sample["net_input"]["prev_output_tokens"] = torch.cat([torch.tensor([[eos]]), sample["target"][:, :-1]], 1)
        read = CaptionScorer(task.target_dictionary).generate([model], sample)[0][0]
        assert torch.allclose(read["attention"], alone["attention"], atol=2e-6)
        assert torch.allclose(read["positional_scores"], alone["positional_scores"], atol=1e-5)


def test_a_store_without_boxes_gives_a_dump_without_boxes(
    toy_folder: Path, toy_data, captioner: Path, tmp_path: Path
) -> None:
    store, dump = tmp_path / "regions.h5", tmp_path / "dump.jsonl"
    shutil.copy(toy_data.regions, store)
    with h5py.File(store, "r+") as file:
        file.attrs["boxes"] = PLACEHOLDER_BOXES
    flags = ("--score-reference", "--gen-subset", "test", "--regions", str(store))
    commands.generate(toy_folder, captioner, *flags, "--grounding-dump", str(dump))
    for row in read_dump(dump):
        assert all(step["box"] is None and step["region"] is not None for step in row["steps"])
        counts = RegionStore(store).counts[RegionStore(store).index(row["image_id"])]
        assert {len(step["attention"]) for step in row["steps"]} == {int(counts)}


def test_generation_leaves_no_dump_behind_when_it_fails(toy_folder: Path, captioner: Path, tmp_path: Path) -> None:
    dump = tmp_path / "dump.jsonl"
    with pytest.raises(GroundingError, match="--items image hands out none"):
        commands.generate(toy_folder, captioner, "--items", "image", "--score-reference", "--grounding-dump", str(dump))
    assert list(tmp_path.iterdir()) == []


def test_a_matching_model_writes_no_captions(toy_folder: Path, matcher: Path) -> None:
    with pytest.raises(GroundingError, match="add --score-reference"):
        commands.generate(toy_folder, matcher, "--gen-subset", "test")
