"""Files of the right form with one thing in them replaced by anything: read, or refused in one line."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.data.caption_formats import read_captions
from fairseq_grounding.data.flickr30k_entities import read_annotation, read_sentences
from fairseq_grounding.data.object_labels import build_labelled_objects, read_class_labels
from fairseq_grounding.data.skipped import Skipped
from fairseq_grounding.data.split_files import read_splits
from fairseq_grounding.errors import GroundingError

LABELS = {
    "image_id": 1,
    "image_size": [9, 8],
    "captions": [
        {"tokens": ["a", "dog"], "process_idx": [1], "process_clss": ["dog"], "process_bnd_box": [[1, 2, 3, 4]]}
    ],
}
KARPATHY = {
    "images": [
        {
            "filename": "1.jpg",
            "cocoid": 1,
            "split": "val",
            "sentences": [{"tokens": ["a"], "raw": "A"}, {"tokens": ["b"]}],
        },
        {"filename": "2.jpg", "cocoid": 2, "split": "train", "sentences": [{"tokens": ["c"], "raw": "C"}]},
    ]
}
COCO = {
    "images": [{"id": 1, "file_name": "1.jpg"}, {"id": 2, "file_name": "2.jpg"}],
    "annotations": [{"image_id": 1, "caption": "a"}, {"image_id": 2, "caption": "b"}],
}


def read_labels(path: Path, skipped: Skipped) -> None:
    captions = read_captions(write(path.parent / "captions.json", KARPATHY))
    build_labelled_objects(read_class_labels(path, None, skipped), captions, {}, {"1": (18, 16), "2": (9, 9)})


def read_dictionary(path: Path, skipped: Skipped) -> None:
    read_class_labels(write(path.parent / "labels.json", {"annotations": [LABELS]}), path, skipped)


def write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


READERS: dict[str, tuple[Any, Callable[[Path, Skipped], Any]]] = {
    "karpathy": (KARPATHY, lambda path, skipped: read_captions(path, skipped=skipped)),
    "karpathy by number": (KARPATHY, lambda path, skipped: read_captions(path, image_key="cocoid", skipped=skipped)),
    "karpathy raw": (KARPATHY, lambda path, skipped: read_captions(path, words=False, skipped=skipped)),
    "coco": (
        COCO,
        lambda path, skipped: read_captions(path, "coco", splits={"1": "train", "2": "test"}, skipped=skipped),
    ),
    "splits": ({"train": ["1", 2], "val": ["3"]}, lambda path, _: read_splits(path)),
    "splits by image": ({"images": [{"id": 1, "split": "train"}]}, lambda path, _: read_splits(path)),
    "labels": ({"annotations": [LABELS], "lemma2w": {"dog": "dogs"}}, read_labels),
    "dictionary": ({"wtod": {"dog": 0}, "wtol": {"dogs": "dog"}}, read_dictionary),
}
ANYTHING = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.just(10**400),
        st.floats(),
        st.text(max_size=3),
        st.sampled_from(["1", "train", "\t", "\ud800"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=2)),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    value = copy.deepcopy(value)
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = new
    return value


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mangled_json_is_read_or_refused(tmp_path_factory, name, data):
    value, read = READERS[name]
    place = data.draw(st.sampled_from(places(value)))
    mangled = replaced(value, place, data.draw(ANYTHING))
    path = write(tmp_path_factory.mktemp("mangled") / "file.json", mangled)
    messages = []
    for skipped in (Skipped(), Skipped(True)):
        try:
            read(path, skipped)
        except GroundingError as error:
            messages.append(str(error))
    assert all(len(message.splitlines()) == 1 for message in messages)
    # what is read without leaving anything out is read with leave to do so, too
    assert len(messages) != 1 or skipped.rows


SENTENCES = "[/EN#1/people A man] in [/EN#2/clothing/other a hat]\n[/EN#0/notvisual It] rains .\n"
XML = (
    "<annotation><size><width>9</width><height>9</height></size><object><name>1</name><name>2</name>"
    "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>3</xmax><ymax>4</ymax></bndbox></object>"
    "<object><name>3</name><scene>1</scene><nobox>0</nobox></object></annotation>"
)


@pytest.mark.parametrize(("text", "read"), [(SENTENCES, read_sentences), (XML, read_annotation)])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_mangled_entities_are_read_or_refused(tmp_path_factory, text, read, data):
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    stop = min(stop, start + data.draw(st.integers(0, 12)))
    new = data.draw(st.one_of(st.binary(max_size=4), st.text(max_size=4).map(lambda t: t.encode("utf-8", "replace"))))
    path = tmp_path_factory.mktemp("mangled") / "1"
    path.write_bytes(text[:start].encode() + new + text[stop:].encode())
    message = f"{path}: "
    try:
        read(path)
    except GroundingError as error:
        message = str(error)
    assert message.startswith(f"{path}: ")
    assert len(message.splitlines()) == 1
