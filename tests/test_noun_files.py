"""Nouns from tagged files and word tables, and tagging by several processes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.cli.prepare_captions import summary
from fairseq_grounding.data.captions import Caption, read_karpathy
from fairseq_grounding.data.noun_files import nouns_by_table, read_tagged
from fairseq_grounding.data.nouns import NOUN_POS, NounTagger
from fairseq_grounding.data.prepare import prepare_captions
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.data.skipped import Skipped
from fairseq_grounding.errors import GroundingError

PENN_NOUNS = ("NN", "NNS", "NNP", "NNPS")
TAGS = (*PENN_NOUNS, "NOUN", "PROPN", "DT", "JJ", "VBG", "PRP$", "-LRB-", ".", ",", "``", "ADJ", "VERB", "SYM", "CONJ")


@settings(max_examples=60, deadline=None)
@given(
    tags=st.lists(st.lists(st.sampled_from(TAGS), min_size=1, max_size=6), min_size=1, max_size=8),
    how=st.sampled_from(["lines", "padded", "keyed", "folder"]),
    order=st.randoms(use_true_random=False),
)
def test_tags_are_read_back(tmp_path_factory, tags, how, order):
    captions = [Caption(f"i{n // 3}", "train", n % 3, ["w"] * len(own), "", n) for n, own in enumerate(tags)]
    path = tmp_path_factory.mktemp("tags") / "tags.txt"
    pad = ["PAD"] if how == "padded" else []
    lines = [" ".join([*pad, *own, *pad]) for own in tags]
    if how == "folder":
        path.mkdir()
        for split, part in (("train", lines[:-2]), ("dev", lines[-2:-1]), ("test", lines[-1:])):
            (path / f"{split}_tags.txt").write_text("".join(f"{line}\n" for line in part))
    elif how == "keyed":
        rows = [f"{c.image_id}\t{c.index}\t{line}\n" for c, line in zip(captions, lines)]
        order.shuffle(rows)
        path.write_text("".join(rows))
    else:
        path.write_text("\n".join(lines))
    # captions may come image by image where the file does not
    order.shuffle(captions)
    masks = read_tagged(path, captions, NOUN_POS)
    for caption, mask in zip(captions, masks):
        assert mask.dtype == np.uint8
        assert mask.tolist() == [int(tag in (*PENN_NOUNS, "NOUN", "PROPN")) for tag in tags[caption.number]]


def test_other_parts_of_speech_in_penn_tags(tmp_path):
    path = tmp_path / "tags.txt"
    path.write_text("DT JJR NN VBZ WRB\n")
    captions = [Caption("a", "train", 0, ["w"] * 5, "")]
    assert read_tagged(path, captions, ["ADJ", "VERB"])[0].tolist() == [0, 1, 0, 1, 0]


TWO = [Caption("a", "train", 0, ["a", "dog"], "", 0), Caption("a", "train", 1, ["dogs"], "", 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("DT NN\nNNS DT\n", r"line 2: caption 1 of image 'a' has 1 words, but 2 tags"),
        ("DT NN\n", r"tags\.txt: caption 1 of image 'a' has no tags"),
        ("", r"tags\.txt: caption 0 of image 'a' has no tags"),
        ("DT NN\nNNX\n", r"line 2: caption 1 of image 'a' has the tag 'NNX', which is neither"),
        ("PAD\nNN\n", r"line 1: caption 0 of image 'a' has 2 words, but 1 tags"),
        ("DT NN\nNN\nNN\n", r"tags\.txt: has 3 lines, but there are 2 captions"),
        ("a\t0\tDT NN\nb\t1\tNN\n", r"tags\.txt: caption 1 of image 'a' has no tags"),
        ("a\t0\tDT NN\na\t0\tDT NN\n", r"line 2: caption 0 of image 'a' is tagged twice"),
        ("a\t0\tDT NN\na 1 NN\n", r"line 2: has 1 columns, not 3"),
    ],
)
def test_bad_tags_name_the_caption(tmp_path, text, message):
    path = tmp_path / "tags.txt"
    path.write_text(text)
    with pytest.raises(GroundingError, match=message) as error:
        read_tagged(path, TWO, NOUN_POS)
    assert "\n" not in str(error.value)


def test_captions_without_tags_can_be_left_out(tmp_path):
    path = tmp_path / "tags.txt"
    path.write_text("DT\nNNS\n")
    skipped = Skipped(True)
    masks = read_tagged(path, TWO, NOUN_POS, skipped)
    assert [None if mask is None else mask.tolist() for mask in masks] == [None, [1]]
    assert [row[:2] for row in skipped.rows] == [("a", "caption 0")]


def test_folder_without_tags(tmp_path):
    with pytest.raises(GroundingError, match=r"--tagged .*: has no file \{train,dev,test\}_tags\.txt"):
        read_tagged(tmp_path, TWO, NOUN_POS)
    with pytest.raises(GroundingError, match="cannot be read"):
        read_tagged(tmp_path / "nothing", TWO, NOUN_POS)


def test_a_noun_by_table_is_one_in_more_than_half_of_its_uses():
    table = {"dog": (3, 2), "light": (4, 2), "run": (9, 4), "cat": (1, 1)}
    masks = nouns_by_table([["a", "dog", "run"], ["light", "cat"]], table)
    assert [mask.tolist() for mask in masks] == [[0, 1, 0], [0, 1]]
    assert masks[0].dtype == np.uint8


def test_several_processes_tag_alike(toy_data):
    words = [caption.tokens for caption in read_karpathy(toy_data.captions)]
    alone, several = (NounTagger(workers=n).tag(words) for n in (1, 2))
    assert [mask.tolist() for mask in several[0]] == [mask.tolist() for mask in alone[0]]
    assert several[1] == alone[1]


def tag_file(toy, folder: Path) -> Path:
    tags = [
        " ".join("NN" if word in toy.nouns else "X" for word in sentence["tokens"])
        for image in json.loads(toy.captions.read_text())["images"]
        for sentence in image["sentences"]
    ]
    (folder / "tags.txt").write_text("\n".join(tags) + "\n")
    return folder / "tags.txt"


def same_folder(out: Path, folder: Path, *names: str) -> None:
    names = ("dict.txt", "nouns.tsv", "train.nouns.bin", "test.nouns.bin", "test.tokens.bin", *names)
    for name in names:
        assert (out / name).read_bytes() == (folder / name).read_bytes(), name


def test_tagged_file_needs_no_spacy(toy_data, toy_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("fairseq_grounding.data.nouns.MODELS", ())
    tags = tag_file(toy_data, tmp_path)
    meta = prepare_captions(
        toy_data.captions, toy_data.regions, tmp_path / "out", threshold=1, nouns="tagged", tagged=tags
    )
    same_folder(tmp_path / "out", toy_folder)
    assert meta["tagger"]["name"] == "tagged tags.txt"
    assert len(meta["tagger"]["version"]) == 12
    assert meta["lemmatiser"] is None
    assert any("NOUN+PROPN of tagged tags.txt" in line for line in summary(meta))


def test_tagged_file_with_entities_takes_lemmas_from_spacy(toy_data, toy_folder, tmp_path):
    tags = tag_file(toy_data, tmp_path)
    meta = prepare_captions(
        toy_data.captions,
        toy_data.regions,
        tmp_path / "out",
        threshold=1,
        nouns="tagged",
        tagged=tags,
        entities=toy_data.entities,
    )
    same_folder(tmp_path / "out", toy_folder, "objects.json")
    assert meta["tagger"]["name"] == "tagged tags.txt"
    assert meta["lemmatiser"] == PreparedFolder(toy_folder).meta["lemmatiser"]
    assert meta["lemmatiser"]["name"].startswith("en_core_web_sm")


def test_word_with_two_lives_follows_the_table(toy_data, tmp_path):
    table = tmp_path / "nouns.tsv"
    table.write_text("dog\t10\t9\ncat\t10\t5\n")
    prepare_captions(
        toy_data.captions,
        toy_data.regions,
        tmp_path / "out",
        threshold=1,
        nouns="table",
        noun_table_path=table,
    )
    found = PreparedFolder(tmp_path / "out").noun_table()
    assert {word for word, (_, tagged) in found.items() if tagged} == {"dog"}
    assert found["dog"][0] == found["dog"][1] > 0


@pytest.mark.parametrize(("text", "message"), [("dog\t1", "cut short"), ("dog\tx\t1\n", "line 1"), (None, "cannot be")])
def test_bad_noun_table(toy_data, tmp_path, text, message):
    table = tmp_path / "nouns.tsv"
    if text is not None:
        table.write_text(text)
    with pytest.raises(GroundingError, match=rf"nouns\.tsv: .*{message}"):
        prepare_captions(toy_data.captions, toy_data.regions, tmp_path / "out", nouns="table", noun_table_path=table)
