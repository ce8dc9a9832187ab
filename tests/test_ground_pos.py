"""``--ground-pos``: a matching model on nouns and other parts of speech."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from fairseq_grounding.checkpoints import load_matching_model
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.errors import GroundingError

from . import commands
from .conftest import TOY_NOUNS
from .test_scan import WORDS, model_of

COLOURS = {"blue", "black", "yellow", "dirty"}
ONE_UPDATE = ("--batch-size", "16", "--max-update", "1", "--no-epoch-checkpoints")


def test_the_folder_knows_the_part_of_speech_of_each_word(toy_folder: Path) -> None:
    folder = PreparedFolder(toy_folder)
    table, nouns = folder.pos_table(), folder.noun_table()
    assert {word: sum(parts.values()) for word, parts in table.items()} == {w: n for w, (n, _) in nouns.items()}
    for word, (_, tagged) in nouns.items():
        assert table[word].get("NOUN", 0) + table[word].get("PROPN", 0) == tagged
    assert all(set(table[word]) == {"ADJ"} for word in COLOURS)
    assert set(table["a"]) == {"DET"}


def looked_from(folder: Path, checkpoint: Path, dump: Path) -> tuple[set[str], set[str]]:
    """The words of the split test that look somewhere, and all of its words."""
    commands.generate(folder, checkpoint, "--score-reference", "--grounding-dump", str(dump))
    looking, not_looking = set(), set()
    for line in dump.read_text().splitlines():
        for step in json.loads(line)["steps"]:
            (not_looking if step["region"] is None else looking).add(step["token"])
    assert not looking & not_looking
    return looking, looking | not_looking


@pytest.mark.parametrize("noun_attention", ["before", "after"])
def test_adjectives_attend_too_and_the_checkpoint_remembers(
    toy_folder: Path, tmp_path: Path, noun_attention: str
) -> None:
    flags = (*ONE_UPDATE, "--noun-attention", noun_attention)
    commands.train(toy_folder, tmp_path / "run", "pos_scan", *flags, "--ground-pos", "NOUN,ADJ")
    last = tmp_path / "run" / "checkpoint_last.pt"
    if noun_attention == "before":
        looking, words = looked_from(toy_folder, last, tmp_path / "dump.jsonl")
        assert looking == words & {*TOY_NOUNS, *COLOURS} > words & {*TOY_NOUNS}
    # without its folder: the words are in the checkpoint
    model = load_matching_model(last, "--teacher-path")
    tokens = torch.tensor([[model.words.index(word) for word in ("a", "blue", "dog", "is", "ball")]])
    mask = model.grounded(tokens, torch.tensor([[0, 0, 1, 0, 0]]))
    # the folder's mask says of each use of a word whether it is a noun there
    assert mask.tolist() == [[False, True, True, False, False]]


def test_only_words_of_the_flag_count(toy_folder: Path, tmp_path: Path) -> None:
    commands.train(toy_folder, tmp_path / "run", "pos_scan", *ONE_UPDATE, "--ground-pos", "ADJ")
    looking, words = looked_from(toy_folder, tmp_path / "run" / "checkpoint_last.pt", tmp_path / "dump.jsonl")
    assert looking == words & COLOURS
    assert len(looking) > 1
    model = load_matching_model(tmp_path / "run" / "checkpoint_last.pt", "--teacher-path")
    assert not model.grounded(torch.tensor([[model.words.index("dog")]]), torch.ones(1, 1)).any()


def test_a_score_is_that_of_the_same_words_marked_as_nouns(toy_folder: Path) -> None:
    plain = model_of(noun_attention="before")
    wide = model_of(noun_attention="before", ground_pos="NOUN,ADJ")
    with torch.no_grad():
        wide.further_words[[6, 7]] = True
    tokens = torch.tensor([[5, 6, 7, 8, WORDS.eos()], [8, 9, 6, WORDS.eos(), WORDS.pad()]])
    nouns = torch.tensor([[0, 0, 0, 1, 0], [0, 0, 0, 0, 0]])
    marked = torch.tensor([[0, 1, 1, 1, 0], [0, 0, 1, 0, 0]])
    net_input = {
        "src_tokens": torch.full((2, 3), WORDS.unk()),
        "features": torch.rand(2, 3, 6, dtype=torch.float64),
        "boxes": torch.rand(2, 3, 4, dtype=torch.float64),
        "image_index": torch.arange(2),
        "target": tokens,
    }
    scores = wide.scores(wide.encode(**net_input, noun_mask=nouns))
    assert torch.equal(scores, plain.scores(plain.encode(**net_input, noun_mask=marked)))
    assert not torch.equal(scores, plain.scores(plain.encode(**net_input, noun_mask=nouns)))


def test_flags_that_make_no_sense_are_refused(toy_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(GroundingError, match="--ground-pos NOUN,JJ: must be of ADJ"):
        commands.train(toy_folder, tmp_path / "run", "pos_scan", *ONE_UPDATE, "--ground-pos", "NOUN,JJ")
    with pytest.raises(GroundingError, match="--ground-pos NOUN,ADJ: all words count; give --noun-attention"):
        commands.train(toy_folder, tmp_path / "run", "scan", *ONE_UPDATE, "--ground-pos", "NOUN,ADJ")
    older = tmp_path / "data" / toy_folder.name
    shutil.copytree(toy_folder.parent, older.parent)
    (older / "pos.tsv").unlink()
    PreparedFolder(older).check()
    commands.train(older, tmp_path / "nouns", "pos_scan", *ONE_UPDATE)
    with pytest.raises(GroundingError, match=r"pos.tsv: is missing; run .* again, with --nouns spacy"):
        commands.train(older, tmp_path / "run", "pos_scan", *ONE_UPDATE, "--ground-pos", "NOUN,ADJ")
    (older / "pos.tsv").write_text("dog\tNOUN\tmany\n")
    with pytest.raises(GroundingError, match=r"pos.tsv: line 1 holds no count"):
        PreparedFolder(older).check()
