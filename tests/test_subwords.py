"""Captioners that write subword pieces, while teacher, nouns, dumps and metrics stay on words."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from fairseq_grounding.data.grounded_caption_dataset import GroundedCaptionDataset
from fairseq_grounding.data.pieces import MARK, PieceReader
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.data.regions import RegionStore
from fairseq_grounding.dump import read_dump
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.scoring.cider import CiderD
from fairseq_grounding.scoring.grounding import GroundingScorer

from . import commands

pytest.importorskip("sentencepiece", reason="needs the extra 'subwords'")

CAPTIONER = ("--items", "group", "--batch-size", "4", "--no-epoch-checkpoints", "--lr", "0.01")


@pytest.fixture(scope="module")
def folder(toy_data, toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy data again, in 40 pieces."""
    from fairseq_grounding.data.prepare import prepare_captions

    folder = tmp_path_factory.mktemp("subwords") / "prepared"
    prepare_captions(
        toy_data.captions,
        toy_data.regions,
        folder,
        entities=toy_data.entities,
        nouns="table",
        noun_table_path=toy_folder,
        threshold=1,
        sentencepiece="40",
    )
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def teacher(toy_folder: Path, runs: Path) -> Path:
    commands.train(toy_folder, runs / "teacher", "pos_scan", "--batch-size", "16", "--max-epoch", "4")
    return runs / "teacher" / "checkpoint_last.pt"


@pytest.fixture(scope="module", params=["up_down", "grounded_transformer"])
def captioner(request: pytest.FixtureRequest, folder: Path, runs: Path) -> Path:
    flags = ("--criterion", "cross_entropy", "--max-epoch", "20")
    commands.train(folder, runs / request.param, request.param, *CAPTIONER, *flags)
    return runs / request.param / "checkpoint_last.pt"


def test_a_folder_with_pieces_is_one_of_words_and_more(folder: Path, toy_folder: Path) -> None:
    ours, plain = PreparedFolder(folder), PreparedFolder(toy_folder)
    ours.check()
    assert ours.content_hash() == plain.content_hash()
    assert (folder / "cider_df.npz").read_bytes() == (toy_folder / "cider_df.npz").read_bytes()
    assert not plain.has_pieces
    dictionary, counted = ours.piece_dictionary(), 0
    reader = PieceReader(dictionary, ours.dictionary())
    for name in ours.splits():
        split = ours.split(name)
        for caption, text in enumerate(split.texts):
            *pieces, end = split.pieces[caption].tolist()
            assert end == dictionary.eos()
            assert reader.strings(pieces) == text.split(" ")
            assert reader.read(split.pieces[caption][None])[0][0].tolist() == split.tokens[caption].tolist()
            counted += len(pieces) * (name == "train")
    meta = ours.meta["sentencepiece"]
    assert sum(dictionary.count[dictionary.nspecial :]) == counted
    assert meta["train_pieces_per_word"] == pytest.approx(counted / ours.meta["train_words"])
    assert meta["train_pieces_per_word"] > 1.5
    assert meta["train_word_coverage"] == 1


def test_the_model_of_a_folder_prepares_the_same_folder_again(folder: Path, toy_data, toy_folder, tmp_path) -> None:
    from fairseq_grounding.data.prepare import prepare_captions

    choices = {"nouns": "table", "noun_table_path": toy_folder, "threshold": 1}
    prepare_captions(
        toy_data.captions, toy_data.regions, tmp_path / "again", sentencepiece=folder / "pieces.model", **choices
    )
    for name in ("pieces.dict.txt", "pieces.model", "train.pieces.bin", "test.pieces.bin"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("name", ["pieces.dict.txt", "pieces.model", "valid.pieces.bin", "valid.pieces.idx"])
def test_a_folder_that_lacks_a_file_of_its_pieces_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / name).unlink()
    with pytest.raises(GroundingError, match=name):
        PreparedFolder(tmp_path / "copy")


def test_pieces_of_other_captions_are_found_out(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    for ending in ("bin", "idx"):
        shutil.copy(folder / f"test.pieces.{ending}", tmp_path / "copy" / f"valid.pieces.{ending}")
    with pytest.raises(GroundingError, match=r"valid\.pieces\.bin: caption \d+ does not spell"):
        PreparedFolder(tmp_path / "copy").check()


@pytest.mark.parametrize("limit", [4, 9, 50])
def test_a_batch_of_pieces_says_which_words_they_spell(folder: Path, limit: int) -> None:
    prepared = PreparedFolder(folder)
    words, pieces = prepared.dictionary(), prepared.piece_dictionary()
    split = prepared.split("train")
    store = RegionStore(prepared.regions_path)
    dataset = GroundedCaptionDataset(split, store, pieces, "group", 100, limit, reader=PieceReader(pieces, words))
    batch = dataset.collater([0, 3])
    given_words = batch["words"]
    assert batch["target"].shape[1] == min(limit, max(len(split.pieces[caption]) for caption in batch["caption"]))
    for row, caption in enumerate(batch["caption"].tolist()):
        symbols = [pieces[token] for token in batch["target"][row].tolist() if token != pieces.pad()]
        assert symbols.pop() == pieces.eos_word
        spoken = "".join(symbols).replace(MARK, " ").split()
        ids, nouns = split.tokens[caption].tolist(), split.nouns[caption].tolist()
        target = [word for word in given_words["target"][row].tolist() if word != words.pad()]
        assert target == [*ids[: len(spoken)], words.eos()]
        own_nouns = given_words["noun_mask"][row].tolist()
        assert own_nouns == nouns[: len(spoken)] + [0] * (len(own_nouns) - len(spoken))
        # the last word may have been cut
        assert spoken[:-1] == split.texts[caption].split(" ")[: len(spoken) - 1]
        at = -1
        for place, symbol in enumerate(symbols):
            begins = symbol.startswith(MARK) and symbols[place - 1] != MARK
            # a mark whose word was cut is left to the word before it
            at += place == 0 or (begins and not (symbol == MARK and place == len(symbols) - 1))
            assert given_words["word_index"][row, place] == at
            assert batch["noun_mask"][row, place] == nouns[at]
        assert given_words["word_index"][row, len(symbols) :].eq(-1).all()
        assert not batch["noun_mask"][row, len(symbols) :].any()


def test_in_words_a_folder_with_pieces_is_like_any_other(folder: Path, toy_folder: Path, tmp_path: Path) -> None:
    flags = ("--batch-size", "16", "--max-update", "2")
    ours = commands.train(folder, tmp_path / "ours", "scan", *flags, "--units", "words")
    plain = commands.train(toy_folder, tmp_path / "plain", "scan", *flags)
    for name, weights in plain["model"].items():
        assert torch.equal(weights, ours["model"][name]), name
    with pytest.raises(GroundingError, match=r" reads words, .*: add --units words"):
        commands.train(folder, tmp_path / "refused", "scan", *flags)
    with pytest.raises(GroundingError, match="holds no subword pieces; prepare it with --sentencepiece"):
        commands.train(toy_folder, tmp_path / "refused", "up_down", *flags, "--units", "pieces")


@pytest.mark.parametrize("how", ["first", "mean"])
def test_reading_captions_in_pieces_dumps_words(folder: Path, captioner: Path, tmp_path: Path, how: str) -> None:
    dump = tmp_path / "dump.jsonl"
    flags = ("--score-reference", "--gen-subset", "test", "--word-attention", how, "--print-alignment", "soft")
    printed = commands.generate(folder, captioner, *flags, "--grounding-dump", str(dump))
    hypotheses, scores = commands.lines_of(printed, "H"), commands.lines_of(printed, "P")
    columns = commands.lines_of(printed, "A")
    texts = PreparedFolder(folder).split("test").texts
    rows = list(read_dump(dump))
    assert len(rows) == 20
    for row in rows:
        assert row["text"] == texts[row["id"]] == " ".join(row["tokens"])
        symbols = hypotheses[row["id"]].split("\t")[1].split(" ")
        weights = [[float(weight) for weight in column.split(",")] for column in columns[row["id"]].split(" ")]
        # fairseq prints logarithms to the base 2
        logs = [float(score) * math.log(2) for score in scores[row["id"]].split()]
        groups: list[list[int]] = []
        for place, symbol in enumerate(symbols):
            if (symbol.startswith(MARK) and symbols[place - 1] != MARK) or place == 0:
                groups.append([])
            groups[-1].append(place)
        assert len(groups) == len(row["tokens"])
        for step, places in zip(row["steps"], groups):
            chosen = [weights[place] for place in (places[:1] if how == "first" else places)]
            mean = [sum(column) / len(chosen) for column in zip(*chosen)]
            assert step["attention"] == pytest.approx(mean, abs=2e-5)
            assert step["region"] == max(range(len(mean)), key=lambda n: step["attention"][n])
            assert step["logprob"] == pytest.approx(sum(logs[place] for place in places), abs=1e-3)


def test_written_captions_are_scored_as_words(folder: Path, captioner: Path, tmp_path: Path) -> None:
    dump = tmp_path / "dump.jsonl"
    flags = ("--items", "image", "--beam", "2", "--max-len-b", "40", "--gen-subset", "test")
    printed = commands.generate(
        folder, captioner, *flags, "--post-process", "sentencepiece", "--grounding-dump", str(dump)
    )
    words = PreparedFolder(folder).dictionary()
    rows = list(read_dump(dump))
    hypotheses = commands.lines_of(printed, "H")
    assert len(rows) == 4
    for row in rows:
        assert hypotheses[row["id"]].split("\t")[1].split() == row["tokens"] == row["text"].split(" ")
    known = [word for row in rows for word in row["tokens"] if words.index(word) != words.unk()]
    assert len(known) > 0.7 * sum(len(row["tokens"]) for row in rows)
    objects = PreparedFolder(folder).objects()
    assert GroundingScorer(objects, protocol="gvd").score(rows)["f1_all"] >= 0


def test_validation_scores_words(folder: Path, captioner: Path, tmp_path: Path) -> None:
    prepared = PreparedFolder(folder)
    words, split = prepared.dictionary(), prepared.split("valid")
    most = math.ceil(20 * prepared.meta["sentencepiece"]["train_pieces_per_word"])
    dump = tmp_path / "dump.jsonl"
    flags = ("--items", "image", "--beam", "1", "--max-len-b", str(most), "--gen-subset", "valid")
    commands.generate(folder, captioner, *flags, "--grounding-dump", str(dump))
    written = {row["image_id"]: row["tokens"] for row in read_dump(dump)}
    assert len(written) == 4
    # what the dictionary lacks is like nothing that people said
    known = set(words.symbols[words.nspecial :])
    hypotheses = [[words.index(word) if word in known else 999 for word in said] for said in written.values()]
    captions = [split.tokens[number].tolist() for number in range(len(split))]
    references = [[c for c, owner in zip(captions, split.image_ids) if owner == image_id] for image_id in written]
    scorer = CiderD.from_references(references, prepared.document_frequency())
    expected = scorer.score([[*hypothesis, words.eos()] for hypothesis in hypotheses], range(4)).mean()
    logged = commands.validate(
        folder, captioner, "--model-overrides", "{'eval_caption_metrics': True, 'eval_grounding': True}"
    )
    assert logged["valid_cider"] == pytest.approx(expected, abs=2e-3)
    assert logged["valid_cider"] > 0.05
    assert {"valid_bleu4", "valid_attention_accuracy", "valid_f1_all"} <= set(logged)


def test_a_teacher_of_words_teaches_a_captioner_of_pieces(
    folder: Path, runs: Path, teacher: Path, captioner: Path, tmp_path: Path
) -> None:
    arch = captioner.parent.name
    how = "first" if arch == "up_down" else "mean"
    flags = ("--criterion", "kl_attention_distill", "--teacher-path", str(teacher), "--teacher-readout", "similarity")
    flags += ("--attention-weight", "1", "--word-attention", how, "--finetune-from-model", str(captioner))
    losses = []
    for epochs, lr in ((1, "1e-12"), (12, "0.01")):
        commands.train(
            folder, tmp_path / str(epochs), arch, *CAPTIONER[:-2], *flags, "--max-epoch", str(epochs), "--lr", lr
        )
        losses.append(commands.validate(folder, tmp_path / str(epochs) / "checkpoint_last.pt")["valid_attention_loss"])
    assert losses[1] < 0.85 * losses[0]
    assert all(math.isfinite(loss) for loss in losses)


def test_rewards_are_of_words(folder: Path, teacher: Path, captioner: Path, tmp_path: Path) -> None:
    flags = ("--criterion", "scst_cider_scan", "--items", "group", "--batch-size", "8", "--max-update", "1")
    flags += ("--lr", "1e-12")
    flags += ("--finetune-from-model", str(captioner), "--max-sample-length", "51", "--samples-per-image", "2")
    matching = ("--reward-path", str(teacher), "--teacher-path", str(teacher), "--baseline", "leave-one-out")
    logged = []
    for name, more in (("cider", ("--scan-weight", "0")), ("both", matching)):
        state = commands.train(folder, tmp_path / name, captioner.parent.name, *flags, *more)
        assert all(bool(torch.isfinite(weights).all()) for weights in state["model"].values())
        checkpoint = tmp_path / name / "checkpoint_last.pt"
        overrides = "{'eval_caption_metrics': True}"
        logged.append(commands.validate(folder, checkpoint, "--items", "group", "--model-overrides", overrides))
    # the loss of validation is minus the mean reward of greedy captions, whose CIDEr-D is the metric
    assert logged[0]["valid_loss"] == pytest.approx(-logged[0]["valid_cider"], abs=2e-3)
    assert logged[1]["valid_reward_cider"] == pytest.approx(logged[0]["valid_cider"], abs=2e-3)
    assert 0 < abs(logged[1]["valid_reward_matching"]) <= 1


def test_a_captioner_of_words_is_not_read_in_pieces(folder: Path, toy_folder: Path, tmp_path: Path) -> None:
    flags = ("--criterion", "cross_entropy", "--batch-size", "16", "--max-update", "1")
    commands.train(toy_folder, tmp_path / "words", "up_down", *flags)
    checkpoint = tmp_path / "words" / "checkpoint_last.pt"
    with pytest.raises(GroundingError, match="another dictionary"):
        commands.generate(folder, checkpoint, "--items", "image")
    assert commands.generate(folder, checkpoint, "--items", "image", "--units", "words")


def test_the_command_trains_the_pieces(toy_data, toy_folder: Path, tmp_path: Path, capsys) -> None:
    from fairseq_grounding.cli import main

    arguments = ["prepare-captions", "--captions", toy_data.captions, "--regions", toy_data.regions]
    arguments += ["--out", tmp_path / "out", "--threshold", "1", "--nouns", "table", "--noun-table", toy_folder]
    assert main([*map(str, arguments), "--sentencepiece", "40"]) in (0, None)
    assert "pieces: 43 symbols; " in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "meta.json").read_text())["sentencepiece"]["file"] is None
