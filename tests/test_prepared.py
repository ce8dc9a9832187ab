"""The prepared folder: what is written is read back, and damage is named."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from collections import defaultdict
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.data.document_frequency import document_frequency
from fairseq_grounding.data.prepare import build_dictionary, prepare_captions
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.data.regions import RegionStore
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.files import content_hash, read_json, write_json, writing_folder


@pytest.fixture
def moved(toy_folder, tmp_path) -> Path:
    """A copy of the toy data with its prepared folder, to be changed by one test."""
    shutil.copytree(toy_folder.parent, tmp_path / "toy")
    return tmp_path / "toy" / toy_folder.name


def test_every_caption_is_read_back(toy_data, toy_folder):
    folder = PreparedFolder(toy_folder)
    dictionary = folder.dictionary()
    images = json.loads(toy_data.captions.read_text())["images"]
    assert folder.splits() == ["train", "valid", "test"]
    for name, original in (("train", "train"), ("valid", "val"), ("test", "test")):
        expected = [
            (image["filename"][:-4], index, sentence)
            for image in images
            if image["split"] == original
            for index, sentence in enumerate(image["sentences"])
        ]
        split = folder.split(name)
        assert len(split) == len(expected) == folder.meta["splits"][name]["captions"]
        assert folder.meta["splits"][name]["images"] == len(expected) // 5
        for n, (image_id, index, sentence) in enumerate(expected):
            words = sentence["tokens"]
            tokens, nouns = split.tokens[n], split.nouns[n]
            assert (split.image_ids[n], split.caption_index[n]) == (image_id, index)
            assert split.texts[n] == " ".join(words)
            assert split.raws[n] == sentence["raw"]
            assert str(tokens.dtype) == "torch.int64"
            assert tokens.tolist() == [dictionary.index(word) for word in words] + [dictionary.eos()]
            assert nouns.tolist() == [int(word in toy_data.nouns) for word in words] + [0]
            assert split.sizes[n] == len(words) + 1
        assert len(list(groupby(split.image_ids))) == len(set(split.image_ids))


def test_nouns_are_stored_in_one_byte(toy_folder):
    split = PreparedFolder(toy_folder).split("train")
    assert (toy_folder / "train.nouns.bin").stat().st_size == split.sizes.sum()


def test_meta_names_the_region_store(toy_data, toy_folder):
    folder = PreparedFolder(toy_folder)
    store = RegionStore(toy_data.regions)
    assert folder.regions_path == toy_data.regions
    assert folder.meta["regions"]["content_hash"] == store.content_hash()
    assert folder.meta["regions"]["feature_size"] == store.feature_size == 12
    assert folder.meta["captions"]["content_hash"] == content_hash(toy_data.captions)
    assert folder.meta["tokeniser"] == "file"
    assert folder.meta["tagger"]["pos"] == ["NOUN", "PROPN"]
    assert folder.meta["train_word_coverage"] == 1


def test_region_store_is_found_after_moving_both_and_after_moving_the_folder_alone(toy_data, moved):
    assert PreparedFolder(moved).regions_path == moved.parent / "regions.h5"
    alone = moved.parent / "elsewhere" / "deep" / "prepared"
    shutil.copytree(moved, alone)
    assert PreparedFolder(alone).regions_path == toy_data.regions


def test_noun_table_counts_training_words(toy_data, toy_folder):
    seen: dict[str, int] = defaultdict(int)
    for image in json.loads(toy_data.captions.read_text())["images"]:
        for sentence in image["sentences"] if image["split"] == "train" else []:
            for word in sentence["tokens"]:
                seen[word] += 1
    expected = {word: (count, count if word in toy_data.nouns else 0) for word, count in seen.items()}
    assert PreparedFolder(toy_folder).noun_table() == expected


def slow_document_frequency(captions, image_ids):
    images = defaultdict(set)
    for caption, image_id in zip(captions, image_ids):
        for n in range(1, 5):
            for start in range(len(caption) - n + 1):
                images[tuple(int(token) for token in caption[start : start + n])].add(image_id)
    return {ngram: len(found) for ngram, found in images.items()}


def as_dict(ngrams, counts):
    assert ngrams.dtype == np.int32
    keys = [tuple(token for token in row if token >= 0) for row in ngrams.tolist()]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, counts.tolist()))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.lists(st.sampled_from([0, 1, 2, 7, 2**31 - 1]), min_size=1, max_size=7),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_document_frequency_is_that_of_a_slow_count(captions):
    image_ids = [image_id for image_id, _ in captions]
    tokens = [np.array(tokens) for _, tokens in captions]
    ngrams, counts, images = document_frequency(tokens, image_ids)
    assert images == len(set(image_ids))
    assert as_dict(ngrams, counts) == slow_document_frequency(tokens, image_ids)


def test_stored_document_frequency_counts_whole_training_captions_with_eos(toy_folder):
    folder = PreparedFolder(toy_folder)
    train = folder.split("train")
    ngrams, counts, images = folder.document_frequency()
    found = as_dict(ngrams, counts)
    assert images == 16
    assert found[(folder.dictionary().eos(),)] == 16
    assert found == slow_document_frequency([train.tokens[n].numpy() for n in range(len(train))], train.image_ids)


def test_split_survives_pickling(toy_folder):
    split = PreparedFolder(toy_folder).split("valid")
    pickled = pickle.dumps(split)
    assert len(pickled) < 1000
    again = pickle.loads(pickled)
    assert again.texts == split.texts
    assert all(again.tokens[n].tolist() == split.tokens[n].tolist() for n in range(len(split)))


def test_dictionary_keeps_frequent_words_in_a_fixed_order():
    counts = {"b": 5, "rare": 4, "a": 5, "most": 9, "<unk>": 100}
    dictionary = build_dictionary(counts, threshold=5)
    assert dictionary.symbols[dictionary.nspecial :] == ["most", "a", "b"]
    assert dictionary.count[dictionary.nspecial :] == [9, 5, 5]
    with pytest.raises(GroundingError, match="--threshold 200: no word occurs that often"):
        build_dictionary(counts, threshold=200)


def test_content_hash_follows_captions_and_not_the_region_store(moved):
    before = PreparedFolder(moved).content_hash()
    (moved / "meta.json").write_text((moved / "meta.json").read_text() + "\n")
    assert PreparedFolder(moved).content_hash() == before
    captions = moved / "valid.captions.tsv"
    captions.write_text(captions.read_text().replace("dog", "cow"))
    assert PreparedFolder(moved).content_hash() != before


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(GroundingError, match="is not a prepared folder"):
        PreparedFolder(tmp_path)


@pytest.mark.parametrize(("key", "value"), [("format", "other"), ("version", 2)])
@pytest.mark.parametrize("name", ["meta.json", "objects.json"])
def test_another_version_is_refused(moved, name, key, value):
    path = moved / name
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(GroundingError, match=f"{name}: is"):
        PreparedFolder(moved).objects()


def test_unknown_split_is_named(toy_folder):
    with pytest.raises(GroundingError, match="has no split 'dev', only train, valid, test"):
        PreparedFolder(toy_folder).split("dev")


@pytest.mark.parametrize(
    "name", ["dict.txt", "nouns.tsv", "cider_df.npz", "test.tokens.bin", "train.nouns.idx", "valid.captions.tsv"]
)
def test_missing_file_is_named(moved, name):
    (moved / name).unlink()
    with pytest.raises(GroundingError, match=f"{name}: is missing"):
        PreparedFolder(moved)


@pytest.mark.parametrize(
    "name", ["train.tokens.bin", "train.tokens.idx", "train.nouns.bin", "train.nouns.idx", "train.captions.tsv"]
)
@pytest.mark.parametrize("left", [0, 10, -1, -30])
def test_truncated_file_is_named(moved, name, left):
    path = moved / name
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(GroundingError, match=name.rpartition(".")[0]):
        PreparedFolder(moved).split("train")


def test_files_of_another_split_are_refused(moved):
    for ending in ("bin", "idx"):
        shutil.copy(moved / f"valid.nouns.{ending}", moved / f"train.nouns.{ending}")
    with pytest.raises(GroundingError, match=r"train\.captions\.tsv: does not belong to train\.tokens"):
        PreparedFolder(moved).split("train")


def test_broken_tables_are_named(moved):
    folder = PreparedFolder(moved)
    (moved / "dict.txt").write_text("dog\n")
    with pytest.raises(GroundingError, match=r"dict\.txt: is not a fairseq dictionary"):
        folder.dictionary()
    (moved / "nouns.tsv").write_text("dog\tmany\t0\n")
    with pytest.raises(GroundingError, match=r"nouns\.tsv: line 1"):
        folder.noun_table()
    (moved / "cider_df.npz").write_bytes(b"nothing")
    with pytest.raises(GroundingError, match=r"cider_df\.npz: cannot be read"):
        folder.document_frequency()


def test_what_cannot_be_written_is_named(tmp_path, monkeypatch):
    def said(write, path):
        with pytest.raises(GroundingError, match=re.escape(f"{path}: ")) as error:
            write(path)
        assert "\n" not in str(error.value)
        return str(error.value)

    def write_folder(path):
        with writing_folder(path) as folder:
            (folder / "a").write_text("a")

    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    assert "is a folder" in said(lambda path: write_json(path, {}), tmp_path / "folder")
    assert "does not exist" in said(lambda path: write_json(path, {}), tmp_path / "file" / "x.json")
    for path in (tmp_path / "file" / "x", tmp_path / "file" / "x" / "y"):
        with pytest.raises(GroundingError, match="file: exists and is not a folder"):
            write_folder(path)

    def denied(source, target):
        raise PermissionError(13, "Permission denied", str(source))

    monkeypatch.setattr(os, "replace", denied)
    assert "cannot be written (Permission denied)" in said(lambda path: write_json(path, {}), tmp_path / "x.json")
    assert "cannot be written (Permission denied)" in said(write_folder, tmp_path / "new" / "newer" / "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
    assert list((tmp_path / "folder").iterdir()) == []


def test_reading_that_fails_is_no_fault_of_the_folder_that_is_written(tmp_path):
    with pytest.raises(FileNotFoundError), writing_folder(tmp_path / "new" / "out"):
        (tmp_path / "input").read_text()


def test_failed_preparation_leaves_no_folders(toy_data, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(GroundingError):
        prepare_captions(tmp_path / "no.json", toy_data.regions, tmp_path / "there" / "new" / "newer" / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_deeply_nested_json_is_named(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 200_000)
    with pytest.raises(GroundingError, match=r"deep\.json: is not valid JSON"):
        read_json(tmp_path / "deep.json")
