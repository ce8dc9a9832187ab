"""Every caption format there and back, split files, tokenisers, and what is left out."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.cli.prepare_captions import summary
from fairseq_grounding.data.caption_formats import read_captions
from fairseq_grounding.data.captions import Caption, images_of
from fairseq_grounding.data.prepare import prepare_captions
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.data.skipped import Skipped
from fairseq_grounding.data.split_files import read_splits
from fairseq_grounding.data.tokenisers import load_tokeniser
from fairseq_grounding.errors import GroundingError

NAMES = {"train": "train", "valid": "val", "test": "test"}
SENTENCE = st.lists(st.text(st.sampled_from("abéX.,'-"), min_size=1, max_size=4), min_size=1, max_size=5).map(" ".join)
# image -> split and sentences
DATA = st.dictionaries(
    st.integers(1, 10**12).map(str),
    st.tuples(st.sampled_from(sorted(NAMES)), st.lists(SENTENCE, min_size=1, max_size=4)),
    min_size=1,
    max_size=5,
)
FIVE = st.dictionaries(
    st.integers(1, 10**12).map(str),
    st.tuples(st.sampled_from(sorted(NAMES)), st.lists(SENTENCE, min_size=5, max_size=5)),
    min_size=1,
    max_size=4,
)


def expected(data: dict[str, tuple[str, list[str]]]) -> dict[str, list[tuple[str, int, str]]]:
    return {i: [(split, n, raw) for n, raw in enumerate(raws)] for i, (split, raws) in data.items()}


def found(captions: list[Caption]) -> dict[str, list[tuple[str, int, str]]]:
    # captions of an image must be adjacent: the grouping below would hide it
    order = [caption.image_id for caption in captions]
    assert len([n for n in range(len(order)) if n == 0 or order[n] != order[n - 1]]) == len(set(order))
    assert all(caption.tokens == [] for caption in captions)
    return {i: [(c.split, c.index, c.raw) for c in own] for i, own in images_of(captions).items()}


def write_coco(folder: Path, data: Any, shuffle: int = 0, parts: int = 1) -> None:
    ids = list(data)
    for part in range(parts):
        own = ids[part::parts]
        images = [{"id": int(i), "file_name": f"COCO_{i}.jpg", "height": 1, "width": 1} for i in own]
        annotations = [
            {"image_id": int(i), "id": n, "caption": raw}
            for n in range(9)
            for i in own
            for raw in data[i][1][n : n + 1]
        ]
        # the captions of one image keep their order, images get mixed up
        random.Random(shuffle).shuffle(images)
        text = json.dumps({"info": {}, "images": images, "annotations": annotations})
        (folder / f"captions_part{part}.json").write_text(text)


@settings(max_examples=40, deadline=None)
@given(data=DATA, shuffle=st.integers(0, 5), parts=st.integers(1, 2), key=st.sampled_from(["filename", "cocoid"]))
def test_coco_there_and_back(tmp_path_factory, data, shuffle, parts, key):
    folder = tmp_path_factory.mktemp("coco")
    write_coco(folder, data, shuffle, parts)
    named = {i if key == "cocoid" else f"COCO_{i}": value for i, value in data.items()}
    splits = {i: split for i, (split, _) in named.items()}
    path = folder if parts > 1 else folder / "captions_part0.json"
    captions = read_captions(path, "coco", image_key=key, splits=splits)
    assert found(captions) == expected(named)
    assert sorted(caption.number for caption in captions) == list(range(len(captions)))


@settings(max_examples=40, deadline=None)
@given(data=DATA, how=st.sampled_from(["column", "splits", "mixed"]), ending=st.sampled_from(["\n", "\r\n"]))
def test_tsv_there_and_back(tmp_path_factory, data, how, ending):
    lines = [
        "\t".join([i, raw] + [NAMES[split]] * (how == "column"))
        for n in range(4)
        for i, (split, raws) in (sorted(data.items()) if how == "mixed" else data.items())
        for raw in raws[n : n + 1]
    ]
    path = tmp_path_factory.mktemp("tsv") / "captions.tsv"
    path.write_bytes((ending.join(lines) + ending).encode())
    splits = None if how == "column" else {i: split for i, (split, _) in data.items()}
    captions = read_captions(path, "tsv", splits=splits)
    assert found(captions) == expected(data)
    for caption in captions:
        assert lines[caption.number].split("\t")[:2] == [caption.image_id, caption.raw]


@settings(max_examples=40, deadline=None)
@given(data=FIVE, per_caption=st.booleans())
def test_scan_there_and_back(tmp_path_factory, data, per_caption):
    folder = tmp_path_factory.mktemp("scan")
    lines = []
    for name, split in (("train", "train"), ("dev", "valid"), ("test", "test")):
        own = {i: raws for i, (at, raws) in data.items() if at == split}
        if own:
            raws = [raw for raws in own.values() for raw in raws]
            ids = [i for i in own for _ in range(5 if per_caption else 1)]
            (folder / f"{name}_caps.txt").write_text("\n".join(raws) + "\n", encoding="utf-8")
            (folder / f"{name}_ids.txt").write_text("\n".join(ids) + "\n")
            lines += raws
    captions = read_captions(folder, "scan")
    assert found(captions) == expected(data)
    assert all(lines[caption.number] == caption.raw for caption in captions)


@settings(max_examples=30, deadline=None)
@given(data=DATA, key=st.sampled_from(["filename", "cocoid"]), own=st.booleans())
def test_karpathy_there_and_back(tmp_path_factory, data, key, own):
    images = [
        {
            "filename": f"a/COCO_{i}.jpg",
            "cocoid": int(i),
            "split": NAMES[split] if own else "nowhere",
            "sentences": [{"raw": raw, "tokens": None} for raw in raws],
        }
        for i, (split, raws) in data.items()
    ]
    path = tmp_path_factory.mktemp("karpathy") / "dataset.json"
    path.write_text(json.dumps({"images": images}))
    named = {i if key == "cocoid" else f"COCO_{i}": value for i, value in data.items()}
    splits = None if own else {i: split for i, (split, _) in named.items()}
    captions = read_captions(path, "karpathy", image_key=key, splits=splits, words=False)
    assert found(captions) == expected(named)
    assert [caption.number for caption in captions] == list(range(len(captions)))


SPLIT_FILES = {
    "a.json": json.dumps({"train": ["1", 2], "val": [3], "test": [], "restval": ["x y"]}),
    "b.json": json.dumps(
        {
            "images": [
                {"id": 1, "split": "train", "file_path": "1.jpg"},
                {"id": "2", "split": "train"},
                {"id": 3, "split": "dev"},
                {"id": "x y", "split": "restval"},
            ],
            "wtod": {},
        }
    ),
    "c.tsv": "1\ttrain\n2\trestval\r\n3\tvalid\nx y\ttrain\n\n",
}


@pytest.mark.parametrize("name", SPLIT_FILES)
def test_split_files(tmp_path, name):
    (tmp_path / name).write_text(SPLIT_FILES[name])
    assert read_splits(tmp_path / name) == {"1": "train", "2": "train", "3": "valid", "x y": "train"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("s.json", '{"train": ["1"], "val": [1]}', "image '1' is in two splits"),
        ("s.json", '{"training": ["1"]}', "the split 'training' is none of train, restval, val, valid, test, dev"),
        ("s.json", '{"train": [["1"]]}', r"\['1'\] is no image id"),
        ("s.json", '{"train": [true]}', "True is no image id"),
        ("s.json", '{"train": "1"}', "is not a split file"),
        ("s.json", "[1]", "is not a split file"),
        ("s.json", "{}", "names no images"),
        ("s.json", '{"images": [{"split": "train"}]}', "image number 0 is no object with 'id' and 'split'"),
        ("s.json", "{", "is not valid JSON"),
        ("s.tsv", "1\ttrain\n2 val\n", "line 2 has 1 columns, not 2"),
        ("s.tsv", "1\ttrain\n2\tx\n", "line 2: the split 'x' is none of"),
        ("s.tsv", "", "names no images"),
    ],
)
def test_bad_split_file_is_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(GroundingError, match=rf"s\.\w+: .*{message}") as error:
        read_splits(tmp_path / name)
    assert "\n" not in str(error.value)


COCO = {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"image_id": 1, "caption": "a dog"}]}
SPLITS = {"a": "train"}


def more_coco(**more: Any) -> dict[str, Any]:
    return {key: COCO[key] + more.get(key, []) for key in COCO}


BAD_COCO = {
    "not COCO": ([], SPLITS, "is not a caption file of COCO's form"),
    "no annotations": ({"images": []}, SPLITS, "is not a caption file of COCO's form"),
    "strings": ({"images": ["a"], "annotations": []}, SPLITS, "is not a caption file of COCO's form"),
    "no splits": (COCO, None, "name no splits; give them by --splits"),
    "in no split": (COCO, {"b": "train"}, "image 'a' is in no split of --splits"),
    "split without captions": (COCO, {"a": "train", "b": "test"}, "image 'b' has no captions"),
    "two without": (COCO, {"a": "train", "b": "test", "c": "test"}, "image 'b' and 1 more of --splits have no"),
    "unknown image": (
        more_coco(annotations=[{"image_id": 7, "caption": "b"}]),
        SPLITS,
        "annotation number 1 is of the image 7, which 'images' lacks",
    ),
    "a list as id": (more_coco(annotations=[{"image_id": [], "caption": "b"}]), SPLITS, "annotation number 1"),
    "no name": (more_coco(images=[{"id": 2}]), SPLITS, "image number 1 has no usable 'id' and 'file_name'"),
    "twice": (more_coco(images=[{"id": 1, "file_name": "b.jpg"}]), SPLITS, "is there more than once"),
    "same name": (more_coco(images=[{"id": 2, "file_name": "a.png"}]), SPLITS, "image 'a' is there more than once"),
    "empty": (more_coco(annotations=[{"image_id": 1, "caption": " \n"}]), SPLITS, "caption 1 of image 'a' is empty"),
    "no text": (more_coco(annotations=[{"image_id": 1}]), SPLITS, "caption 1 of image 'a' is empty"),
    "no captions": (
        more_coco(images=[{"id": 2, "file_name": "b.jpg"}]),
        {"a": "train", "b": "test"},
        "image 'b' has no captions",
    ),
}


@pytest.mark.parametrize("case", BAD_COCO)
def test_bad_coco_is_named(tmp_path, case):
    data, splits, message = BAD_COCO[case]
    path = tmp_path / "captions.json"
    path.write_text(json.dumps(data))
    with pytest.raises(GroundingError) as error:
        read_captions(path, "coco", splits=splits)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    if "--splits" not in message and "form" not in message:
        skipped = Skipped(True)
        captions = read_captions(path, "coco", splits=splits, skipped=skipped)
        assert found(captions)["a"] == [("train", 0, "a dog")]
        assert skipped.rows


BAD_TSV = {
    "one column": ("1\ta\ttrain\nalone\n", "line 2: has 1 columns, not 3"),
    "four columns": ("1\ta\ttrain\tmore\n", "line 1: has 4 columns, not 3"),
    "no split": ("1\ta\ttrain\n2\ta\n", "line 2: has no split; add it as a third column, or give --splits"),
    "unknown split": ("1\ta\tfoo\n", "line 1: image '1' has the split 'foo', which is none of"),
    "two splits": ("1\ta\ttrain\n1\tb\ttest\n", "line 2: image '1' is in the split 'test' here, and in 'train'"),
    "empty line": ("1\ta\ttrain\n\n1\tb\ttrain\n", "line 2: has 1 columns"),
    "empty caption": ("1\ta\ttrain\n1\t  \ttrain\n", "line 2: caption 1 of image '1' is empty"),
    "no id": ("\ta\ttrain\n", "line 1: has the image id '', which is of no use"),
}


@pytest.mark.parametrize("case", BAD_TSV)
def test_bad_tsv_names_the_line(tmp_path, case):
    text, message = BAD_TSV[case]
    path = tmp_path / "captions.tsv"
    path.write_text(text)
    with pytest.raises(GroundingError) as error:
        read_captions(path, "tsv")
    assert str(error.value).startswith(f"{path}: {message}")
    skipped = Skipped(True)
    # what is good stays
    good = [
        line.split("\t")
        for line in text.splitlines()
        if line.endswith("\ttrain") and line[0] == "1" and "  " not in line
    ]
    assert [caption.raw for caption in read_captions(path, "tsv", skipped=skipped)] == [cells[1] for cells in good]
    assert len(skipped.rows) == 1


def test_bad_bytes_and_missing_files(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"1\ta \xff\ttrain\n")
    with pytest.raises(GroundingError, match=r"a\.tsv: is not UTF-8 text"):
        read_captions(tmp_path / "a.tsv", "tsv")
    with pytest.raises(GroundingError, match=r"b\.tsv: cannot be read"):
        read_captions(tmp_path / "b.tsv", "tsv")
    with pytest.raises(GroundingError, match=r"b\.json: cannot be read"):
        read_captions(tmp_path / "b.json", "coco", splits={"1": "train"})


def test_bad_scan_folders(tmp_path):
    def fails(message: str, **more: Any) -> None:
        with pytest.raises(GroundingError, match=message):
            read_captions(tmp_path, "scan", **more)

    fails(r"is no folder with \{train,dev,test\}_caps\.txt")
    (tmp_path / "train_caps.txt").write_text("a\nb\nc\nd\ne\nf\n")
    fails(r"train_ids\.txt: is missing")
    (tmp_path / "train_ids.txt").write_text("1\n2\n")
    fails(r"train_caps\.txt: has 6 captions, but train_ids\.txt 2 images: there must be 5")
    (tmp_path / "train_ids.txt").write_text("1\n1\n2\n2\n\n2\n")
    fails(r"train_caps\.txt: line 5: the image id '' is of no use")
    (tmp_path / "train_ids.txt").write_text("1\n1\n2\n2\n1\n2\n")
    captions = read_captions(tmp_path, "scan")
    assert [(c.image_id, c.raw, c.number) for c in captions] == [
        ("1", "a", 0),
        ("1", "b", 1),
        ("1", "e", 4),
        ("2", "c", 2),
        ("2", "d", 3),
        ("2", "f", 5),
    ]
    fails("--splits: SCAN's folders hold their splits", splits={"1": "train"})
    (tmp_path / "test_caps.txt").write_text("x\n")
    (tmp_path / "test_ids.txt").write_text("2\n")
    fails(r"test_caps\.txt: line 1: image '2' is in an earlier split too")


def test_karpathy_without_cocoid_or_raw(tmp_path):
    path = tmp_path / "dataset.json"
    image = {"filename": "a.jpg", "cocoid": "7", "split": "train", "sentences": [{"tokens": ["a"]}]}
    path.write_text(json.dumps({"images": [image]}))
    with pytest.raises(GroundingError, match="image number 0 has no usable 'cocoid'"):
        read_captions(path, image_key="cocoid")
    with pytest.raises(GroundingError, match="caption 0 of image 'a' has no text 'raw'"):
        read_captions(path, words=False)
    with pytest.raises(GroundingError, match="image 'a' is in no split of --splits"):
        read_captions(path, splits={"b": "train"})


def test_leaving_out_keeps_the_numbers_of_the_file(tmp_path):
    sentences = [{"tokens": ["a"]}, {"tokens": []}, {"tokens": ["b c"]}, {"tokens": ["d"]}]
    images = [
        {"filename": "a.jpg", "split": "train", "sentences": sentences},
        {"filename": "b.jpg", "split": "nowhere", "sentences": sentences},
        {"filename": "c.jpg", "split": "test", "sentences": sentences[3:]},
    ]
    path = tmp_path / "dataset.json"
    path.write_text(json.dumps({"images": images}))
    skipped = Skipped(True)
    captions = read_captions(path, skipped=skipped)
    assert [(c.image_id, c.index, c.number) for c in captions] == [("a", 0, 0), ("a", 3, 3), ("c", 0, 8)]
    assert [row[:2] for row in skipped.rows] == [("a", "caption 1"), ("a", "caption 2"), ("b", "image")]
    assert skipped.counts() == {"images": 1, "captions": 2, "annotations": 0}


def test_tokenisers_cut_lower_case_words():
    sentences = ["A man's T-shirt, (it is RED) -- don't touch!", "Two  dogs ."]
    assert load_tokeniser("whitespace").cut(sentences) == [
        ["a", "man's", "t-shirt,", "(it", "is", "red)", "--", "don't", "touch!"],
        ["two", "dogs", "."],
    ]
    spacy = load_tokeniser("spacy")
    assert spacy.cut(sentences) == [
        ["a", "man", "'s", "t", "shirt", "it", "is", "red", "do", "n't", "touch"],
        ["two", "dogs"],
    ]
    assert spacy.version is not None
    assert spacy.cut([]) == []


needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")


@needs_java
def test_ptb_is_what_the_metrics_do():
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    sentences = [
        "A man's T-shirt, (it is RED) -- don't touch!",
        "...",
        "Caf\xe9 au lait costs $5.00 \u2014 or 1 1/2 \u201ceuros\u201d.",
        "U.S. *NL* & 'quoted' {braces} [x]",
        "last",
    ]
    tokeniser = load_tokeniser("ptb")
    theirs = PTBTokenizer().tokenize({n: [{"caption": raw}] for n, raw in enumerate(sentences)})
    assert tokeniser.cut(sentences) == [theirs[n][0].split() for n in range(len(sentences))]
    assert tokeniser.version.startswith("stanford-corenlp-3.4.1, pycocoevalcap ")
    assert tokeniser.cut([]) == []


def test_missing_programs_are_named(monkeypatch):
    tokeniser = load_tokeniser("ptb")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(GroundingError, match="--tokeniser ptb: java cannot be run"):
        tokeniser.cut(["a dog"])
    monkeypatch.setattr("fairseq_grounding.data.tokenisers.find_spec", lambda name: None)
    with pytest.raises(GroundingError, match=r"--tokeniser ptb needs .*'fairseq-grounding\[metrics\]'"):
        load_tokeniser("ptb")
    with pytest.raises(GroundingError, match=r"--tokeniser spacy needs .*'fairseq-grounding\[text\]'"):
        load_tokeniser("spacy")


@needs_java
def test_java_that_fails_is_one_line(monkeypatch):
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dx=y -XX:NoSuchOption")
    with pytest.raises(GroundingError, match="--tokeniser ptb: it ended with 1") as error:
        load_tokeniser("ptb").cut(["a dog"])
    assert "\n" not in str(error.value)


def toy_as(form: str, toy: Any, folder: Path) -> dict[str, Any]:
    """The toy data's captions in another format, and the arguments to prepare them."""
    images = json.loads(toy.captions.read_text())["images"]
    data = {i["filename"][:-4]: (i["split"], [s["raw"] for s in i["sentences"]]) for i in images}
    (folder / "splits.json").write_text(
        json.dumps({name: [i for i, (split, _) in data.items() if split == name] for name in ("train", "val", "test")})
    )
    if form == "coco":
        listed = [{"id": n, "file_name": f"{i}.jpg"} for n, i in enumerate(data)]
        annotations = [{"image_id": n, "caption": data[i][1][k]} for k in range(5) for n, i in enumerate(data)]
        (folder / "captions.json").write_text(json.dumps({"images": listed, "annotations": annotations}))
        return {"captions_path": folder / "captions.json", "splits_path": folder / "splits.json"}
    if form == "scan":
        for name, split in (("train", "train"), ("dev", "val"), ("test", "test")):
            own = {i: raws for i, (at, raws) in data.items() if at == split}
            (folder / f"{name}_caps.txt").write_text("".join(f"{raw}\n" for raws in own.values() for raw in raws))
            (folder / f"{name}_ids.txt").write_text("".join(f"{i}\n" for i in own))
        return {"captions_path": folder}
    lines = [f"{i}\t{data[i][1][k]}\t{data[i][0]}\n" for k in range(5) for i in data]
    (folder / "captions.tsv").write_text("".join(lines))
    return {"captions_path": folder / "captions.tsv"}


@pytest.mark.parametrize("form", ["coco", "scan", "tsv"])
def test_every_format_prepares_the_same_folder(toy_data, toy_folder, tmp_path, form):
    paths = toy_as(form, toy_data, tmp_path)
    meta = prepare_captions(
        paths.pop("captions_path"),
        toy_data.regions,
        tmp_path / "out",
        form=form,
        nouns="table",
        noun_table_path=toy_folder,
        threshold=1,
        **paths,
    )
    assert meta["captions"]["format"] == form
    assert meta["tokeniser"] == "spacy"
    assert meta["tokeniser_version"].count(".") == 2
    for name in [
        "dict.txt",
        "nouns.tsv",
        *(f"{s}.{e}" for s in NAMES for e in ("tokens.bin", "nouns.bin", "captions.tsv")),
    ]:
        assert (tmp_path / "out" / name).read_bytes() == (toy_folder / name).read_bytes(), name


def test_skipping_lists_reasons_and_prepares_the_rest(toy_data, toy_folder, tmp_path):
    images = json.loads(toy_data.captions.read_text())["images"]
    images[0]["split"] = "nowhere"
    images[1]["filename"] = "lost.jpg"
    images[2]["sentences"] = []
    images[3]["sentences"][0]["tokens"] = []
    images[3]["sentences"][2]["tokens"] = ["a", "</s>"]
    captions = tmp_path / "dataset.json"
    captions.write_text(json.dumps({"images": images}))
    entities = tmp_path / "entities"
    shutil.copytree(toy_data.entities, entities)
    (entities / "Annotations" / "toy04.xml").write_text("<annotation>")
    (entities / "Sentences" / "toy05.txt").unlink()
    out = tmp_path / "out"
    given_ = {"nouns": "table", "noun_table_path": toy_folder / "nouns.tsv", "threshold": 1, "entities": entities}
    with pytest.raises(GroundingError, match="image 'toy00' has the split 'nowhere'"):
        prepare_captions(captions, toy_data.regions, out, **given_)
    assert not out.exists()

    meta = prepare_captions(captions, toy_data.regions, out, skip_bad=True, **given_)
    head, *rows = (line.split("\t") for line in (out / "skipped.tsv").read_text().splitlines())
    assert head == ["image_id", "what", "reason"]
    assert [row[:2] for row in rows] == [
        ["toy00", "image"],
        ["toy02", "image"],
        ["toy03", "caption 0"],
        ["lost", "image"],
        ["toy03", "caption 2"],
        ["toy04", "annotation"],
        ["toy05", "annotation"],
    ]
    assert "is not well-formed XML" in rows[5][2]
    assert meta["skipped"] == {"images": 3, "captions": 2, "annotations": 2}
    # toy00, toy01 (which the captions call lost) and toy02
    assert meta["regions_without_captions"] == 3
    lines = "\n".join(summary(meta))
    assert "regions: 3 images of the region store have no captions here" in lines
    assert "skipped: 3 images, 2 captions, 2 annotations; skipped.tsv says why" in lines
    folder = PreparedFolder(out)
    train = folder.split("train")
    own = [n for n, image_id in enumerate(train.image_ids) if image_id == "toy03"]
    assert train.caption_index[own].tolist() == [0, 1, 2]
    # boxes stay with the right captions although two before them are gone
    objects = folder.objects()
    whole = PreparedFolder(toy_folder).objects()
    assert objects["images"]["toy03"] == [whole["images"]["toy03"][n] for n in (1, 3, 4)]
    assert {"toy04", "toy05"}.isdisjoint(objects["images"])


def test_without_skipping_nothing_is_listed(toy_data, toy_folder):
    assert not (toy_folder / "skipped.tsv").exists()
    meta = PreparedFolder(toy_folder).meta
    assert (meta["skipped"], meta["regions_without_captions"]) == (None, 0)
    assert not any(line.startswith(("skipped", "regions")) for line in summary(meta))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"form": "yaml"}, "--format yaml: must be one of karpathy, coco, scan, tsv"),
        ({"form": "coco", "tokeniser": "file"}, "--tokeniser file: --format coco holds no words"),
        ({"tokeniser": "nltk"}, "--tokeniser nltk: must be one of file, ptb, spacy, whitespace"),
        ({"image_key": "imgid"}, "--image-id imgid: must be one of filename, cocoid"),
        ({"nouns": "tagged"}, "--nouns tagged and --tagged FILE belong together"),
        ({"noun_table_path": "x"}, "--nouns table and --noun-table FILE belong together"),
        ({"entities": "a", "class_labels": "b"}, "--entities and --class-labels: both say"),
        ({"class_dictionary": "a"}, "--class-dictionary: belongs to --class-labels"),
        ({"class_labels": "a", "several_boxes": "union"}, "--several-boxes union: class labels have one box a word"),
        ({"several_boxes": "mean"}, "--several-boxes mean: must be one of each, union, largest"),
        ({"workers": 0}, "--workers 0: must be at least 1"),
    ],
)
def test_flags_that_do_not_go_together(toy_data, tmp_path, more, message):
    with pytest.raises(GroundingError) as error:
        prepare_captions(toy_data.captions, toy_data.regions, tmp_path / "out", **more)
    assert str(error.value).startswith(message)
    assert not (tmp_path / "out").exists()


def test_captions_that_a_tokeniser_empties(toy_data, toy_folder, tmp_path):
    images = json.loads(toy_data.captions.read_text())["images"]
    images[0]["sentences"][1]["raw"] = " . . !"
    captions = tmp_path / "dataset.json"
    captions.write_text(json.dumps({"images": images}))
    given_ = {"nouns": "table", "noun_table_path": toy_folder, "tokeniser": "spacy", "threshold": 1}
    with pytest.raises(GroundingError, match="caption 1 of image 'toy00' has no words left after the tokeniser"):
        prepare_captions(captions, toy_data.regions, tmp_path / "out", **given_)
    meta = prepare_captions(captions, toy_data.regions, tmp_path / "out", skip_bad=True, **given_)
    assert meta["splits"]["train"]["captions"] == 79


@pytest.mark.parametrize("key", ["raw", "tokens"])
def test_half_a_character_is_named(toy_data, toy_folder, tmp_path, key):
    images = json.loads(toy_data.captions.read_text())["images"]
    images[0]["sentences"][1][key] = "a \ud83d dog" if key == "raw" else ["a", "\ud83d"]
    captions = tmp_path / "dataset.json"
    captions.write_text(json.dumps({"images": images}))
    given_ = {"nouns": "table", "noun_table_path": toy_folder, "threshold": 1}
    with pytest.raises(GroundingError, match=r"caption 1 of image 'toy00' has .*\\ud83d.*half of a character"):
        prepare_captions(captions, toy_data.regions, tmp_path / "out", **given_)
    prepare_captions(captions, toy_data.regions, tmp_path / "out", skip_bad=True, **given_)
    assert len((tmp_path / "out" / "skipped.tsv").read_text().splitlines()) == 2
