"""Flickr30k Entities: the parser, tying phrases to other wordings, and objects.json."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.data.captions import Caption, read_karpathy
from fairseq_grounding.data.flickr30k_entities import (
    Phrase,
    Sentence,
    align,
    read_annotation,
    read_sentences,
    tie,
)
from fairseq_grounding.data.objects import build_objects, read_entities
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.errors import GroundingError

WORDS = st.text(st.sampled_from("abcdéß'-,.0"), min_size=1, max_size=6)
IDS = st.integers(1, 10**6).map(str)
TYPES = st.lists(st.sampled_from(["people", "clothing", "other", "scene"]), min_size=1, max_size=3)
PIECES = st.one_of(
    st.lists(WORDS, min_size=1, max_size=4),
    st.tuples(st.one_of(IDS, st.just("0")), TYPES, st.lists(WORDS, min_size=1, max_size=4)),
)


@settings(max_examples=80, deadline=None)
@given(sentences=st.lists(st.lists(PIECES, min_size=1, max_size=6), min_size=1, max_size=5), final=st.booleans())
def test_sentences_are_read_back(tmp_path_factory, sentences, final):
    lines, expected = [], []
    for pieces in sentences:
        words, phrases, parts = [], [], []
        for piece in pieces:
            if isinstance(piece, list):
                words += piece
                parts += piece
            else:
                entity, types, inside = piece
                phrases.append(Phrase(entity, tuple(types), len(words), len(words) + len(inside)))
                words += inside
                parts.append(f"[/EN#{entity}/{'/'.join(types)} {' '.join(inside)}]")
        lines.append(" ".join(parts))
        expected.append(Sentence(words, phrases))
    path = tmp_path_factory.mktemp("sentences") / "1.txt"
    path.write_text("\n".join(lines) + "\n" * final, encoding="utf-8")
    assert read_sentences(path) == expected


BOX = st.tuples(*[st.integers(1, 500)] * 4).map(
    lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3]))
)
OBJECT = st.tuples(
    st.lists(IDS, min_size=1, max_size=3, unique=True), st.one_of(BOX, st.sampled_from(["scene", "nobox"]))
)


@settings(max_examples=80, deadline=None)
@given(size=st.tuples(st.integers(1, 5000), st.integers(1, 5000)), objects=st.lists(OBJECT, max_size=8))
def test_annotations_are_read_back(tmp_path_factory, size, objects):
    boxes: dict[str, list] = {}
    flags: dict[str, set] = {"scene": set(), "nobox": set()}
    text = f"<annotation>\n<filename>1.jpg</filename>\n<size><width>{size[0]}</width><height>{size[1]}</height></size>"
    for ids, what in objects:
        text += "<object>" + "".join(f"<name>{entity}</name>" for entity in ids)
        if isinstance(what, str):
            text += f"<scene>{int(what == 'scene')}</scene><nobox>{int(what == 'nobox')}</nobox>"
            flags[what].update(ids)
        else:
            tags = zip(("xmin", "ymin", "xmax", "ymax"), what)
            text += "<bndbox>" + "".join(f"<{tag}>{value}</{tag}>" for tag, value in tags) + "</bndbox>"
            for entity in ids:
                # pixels in the file are counted from 1
                boxes.setdefault(entity, []).append(tuple(value - 1 for value in what))
        text += "</object>\n"
    path = tmp_path_factory.mktemp("annotations") / "1.xml"
    path.write_text(text + "</annotation>")
    annotation = read_annotation(path)
    assert annotation.size == size
    assert annotation.boxes == boxes
    assert annotation.scenes == flags["scene"]
    assert annotation.without_box == flags["nobox"]


def test_empty_line_keeps_the_numbers_of_sentences(tmp_path):
    path = tmp_path / "1.txt"
    path.write_text("a dog\n\na cat\n\n")
    assert [sentence.words for sentence in read_sentences(path)] == [["a", "dog"], [], ["a", "cat"]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[/EN#1/people a man", "the phrase of entity 1 is not closed"),
        ("[/EN#1/people a [/EN#2/other b]]", "opens a phrase within a phrase"),
        ("[/EN#1 a man]", "is not \\[/EN#<id>/<type>"),
        ("[/EN#/people a man]", "is not \\[/EN#<id>/<type>"),
        ("[/EN#1/people ]", "the phrase of entity 1 has no words"),
        ("[/EN#1/people]", "is not \\[/EN#<id>/<type>"),
    ],
)
def test_malformed_sentence_names_file_and_line(tmp_path, line, message):
    path = tmp_path / "77.txt"
    path.write_text(f"a good line\n{line}\n")
    with pytest.raises(GroundingError, match=rf"77\.txt: line 2: .*{message}"):
        read_sentences(path)


def test_unreadable_sentences(tmp_path):
    (tmp_path / "1.txt").write_bytes(b"a \xff dog")
    with pytest.raises(GroundingError, match=r"1\.txt: is not UTF-8"):
        read_sentences(tmp_path / "1.txt")
    with pytest.raises(GroundingError, match=r"2\.txt: cannot be read"):
        read_sentences(tmp_path / "2.txt")


SIZE = "<size><width>9</width><height>9</height></size>"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "is not well-formed XML"),
        ("<annotation>\n<size>\n</annotation>", 3, "is not well-formed XML"),
        ("<annotation>\n</annotation>", 1, "<annotation> has no <size>"),
        ("<annotation>\n<size><width>9</width></size></annotation>", 2, "<size> has no <height>"),
        ("<annotation>\n<size>\n<width>x</width></size></annotation>", 3, "<width> is 'x', not a whole number"),
        (
            "<annotation>\n<size><width>0</width><height>9</height></size></annotation>",
            2,
            "the image's size is \\(0, 9\\)",
        ),
        (f"<annotation>{SIZE}\n<object><bndbox/></object></annotation>", 2, "the object has no <name>"),
        (f"<annotation>{SIZE}\n<object><name>1</name></object></annotation>", 2, "neither <bndbox> nor"),
        (
            f"<annotation>{SIZE}\n<object><name>1</name>\n<bndbox><xmin>1</xmin></bndbox></object></annotation>",
            3,
            "<bndbox> has no <ymin>",
        ),
        (
            f"<annotation>{SIZE}\n<object><name>1</name>\n\n<bndbox><xmin>5</xmin><ymin>1</ymin><xmax>4</xmax>"
            "<ymax>9</ymax></bndbox></object></annotation>",
            4,
            "the box ends before it starts",
        ),
        (
            '<!DOCTYPE a [\n<!ENTITY x SYSTEM "file:///etc/hostname">\n]>\n<annotation>&x;</annotation>',
            1,
            "has a document type or entity, which is refused",
        ),
    ],
)
def test_malformed_xml_names_file_and_line(tmp_path, text, line, message):
    path = tmp_path / "88.xml"
    path.write_text(text)
    with pytest.raises(GroundingError, match=rf"88\.xml: line {line}: .*{message}") as error:
        read_annotation(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "encoding", ["nonsense", "utf-16", "utf-7", "idna", "base64", "shift_jis", "hz", "rot13", "big5"]
)
@pytest.mark.parametrize("letters", [b"", b"\xff\xfe\x81"])
def test_xml_of_an_encoding_that_cannot_be_read_is_named(tmp_path, encoding, letters):
    path = tmp_path / "88.xml"
    path.write_bytes(f'<?xml version="1.0" encoding="{encoding}"?>\n<annotation>'.encode() + letters + b"</annotation>")
    with pytest.raises(GroundingError, match=r"88\.xml: ") as error:
        read_annotation(path)
    assert "\n" not in str(error.value)


PLAIN_WORDS = st.lists(st.text(st.sampled_from("abcd"), min_size=1, max_size=3), min_size=1, max_size=8)


@settings(max_examples=150, deadline=None)
@given(words=PLAIN_WORDS, data=st.data())
def test_words_are_found_after_punctuation_case_and_cuts_change(words, data):
    """The other wording: punctuation added, case changed, then cut anew at some places; every letter is known."""
    annotated, tokens = [], []
    # for each annotated word, the numbers of its letters
    letters: list[list[int]] = []
    owner: list[int] = []
    for word in words:
        if data.draw(st.booleans()):
            annotated.append(data.draw(st.sampled_from([",", ".", '"', "-"])))
            letters.append([])
        start = sum(map(len, letters))
        letters.append(list(range(start, start + len(word))))
        annotated.append(word.capitalize())
    text = "".join(words)
    cuts = sorted({0, len(text), *data.draw(st.sets(st.integers(0, len(text)), max_size=4))})
    for start, stop in zip(cuts, cuts[1:]):
        owner += [len(tokens)] * (stop - start)
        tokens.append(text[start:stop])
    found = align(annotated, tokens)
    for own, place in zip(letters, found):
        if not own:
            assert place is None
        elif place is not None:
            # whatever is said to hold the word spells it
            spelled = "".join(tokens[place[0] : place[1]])
            assert "".join(text[n] for n in own) in spelled
    if all("".join(words).count(word) == 1 for word in words):
        # no word comes twice, so there is one right answer
        right = [(owner[own[0]], owner[own[-1]] + 1) if own else None for own in letters]
        assert [place in (None, expected) for place, expected in zip(found, right)] == [True] * len(right)


@settings(max_examples=100, deadline=None)
@given(words=PLAIN_WORDS, data=st.data())
def test_same_words_with_punctuation_between_are_all_found(words, data):
    annotated, expected = [], []
    for n, word in enumerate(words):
        for _ in range(data.draw(st.integers(0, 2))):
            annotated.append(data.draw(st.sampled_from([",", "--", "'"])))
            expected.append(None)
        annotated.append(word.upper())
        expected.append((n, n + 1))
    assert align(annotated, words) == expected


def test_words_that_are_cut_otherwise_or_differ():
    annotated = ["A", "man", "'s", "T-shirt", ",", "and", "a", "yound", "boy"]
    assert align(annotated, ["a", "mans", "t", "shirt", "and", "a", "young", "boy"]) == [
        (0, 1),
        (1, 2),
        (1, 2),
        (2, 4),
        None,
        (4, 5),
        (5, 6),
        None,
        (7, 8),
    ]


def test_phrase_with_a_word_that_is_not_found_is_left_out():
    sentence = Sentence(
        ["a", '"', "big", '"', "dog", "and", "a", "yound", "boy", "."],
        [Phrase("1", ("animals",), 0, 5), Phrase("2", ("people",), 6, 9), Phrase("3", ("other",), 9, 10)],
    )
    assert tie(sentence, ["a", "big", "dog", "and", "a", "young", "boy"]) == [(0, 3), None, None]


def one_image(folder: Path, sentence: str, objects: str, size=(100, 50)) -> Path:
    for name in ("Sentences", "Annotations"):
        (folder / name).mkdir(parents=True)
    (folder / "Sentences" / "1.txt").write_text(sentence)
    (folder / "Annotations" / "1.xml").write_text(
        f"<annotation><size><width>{size[0]}</width><height>{size[1]}</height></size>{objects}</annotation>"
    )
    return folder


def boxed(entity: str, *boxes: tuple[int, int, int, int]) -> str:
    return "".join(
        f"<object><name>{entity}</name><bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax>"
        "</bndbox></object>"
        for a, b, c, d in boxes
    )


def objects_of(entities: Path, text: str, nouns: set[str], size=(100, 50), min_class_count=1):
    words = text.split()
    mask = np.array([word in nouns for word in words], dtype=np.uint8)
    lemmas = {word: word.rstrip("s") for word in words}
    captions = [Caption("1", "test", 0, words, text)]
    return build_objects(read_entities(entities, ["1"]), captions, [mask], lemmas, {"1": size}, min_class_count)


def test_phrases_and_the_reasons_they_are_left_out(tmp_path):
    line = (
        "[/EN#7/people/other Two tall dogs] on [/EN#0/notvisual the left] by [/EN#8/scene a park] see "
        "[/EN#9/people them] and [/EN#7/people a gray wolf] ."
    )
    entities = one_image(
        tmp_path,
        line,
        boxed("7", (1, 2, 3, 4), (5, 6, 7, 8))
        + boxed("9", (1, 1, 1, 1))
        + "<object><name>8</name><scene>1</scene><nobox>0</nobox></object>",
    )
    text = "two tall dogs on the left by a park see them and a grey wolf"
    objects, counts = objects_of(entities, text, {"dogs", "left", "park", "wolf"})
    assert objects["images"] == {
        "1": [
            [
                {
                    "word": 2,
                    "class": "dog",
                    "boxes": [[0, 1, 2, 3], [4, 5, 6, 7]],
                    "span": [0, 3],
                    "types": ["people", "other"],
                    "entity": "7",
                }
            ]
        ]
    }
    assert counts == {
        "images": 1,
        "images_rescaled": 0,
        "phrases": 5,
        "phrases_boxed": 1,
        "phrases_not_visual": 1,
        "phrases_without_box": 1,
        "phrases_not_tied": 1,
        "phrases_without_noun": 1,
        "captions_without_sentence": 0,
        "classes": 1,
    }
    assert objects["tokens"] == {"1": [text.split()]}
    assert objects["sizes"] == {"1": [100, 50]}
    assert objects["splits"] == {"1": "test"}


def test_head_is_the_last_noun_and_rare_lemmas_are_no_class(tmp_path):
    line = "[/EN#1/people The dogs] and [/EN#2/people a dog house outside] and [/EN#3/other the dog]"
    entities = one_image(tmp_path, line, "".join(boxed(n, (1, 1, 9, 9)) for n in "123"))
    text = "the dogs and a dog house outside and the dog"
    objects, _ = objects_of(entities, text, {"dog", "dogs", "house"}, min_class_count=2)
    assert [(entry["word"], entry["class"]) for entry in objects["images"]["1"][0]] == [
        (1, "dog"),
        (5, None),
        (9, "dog"),
    ]
    assert objects["classes"] == ["dog"]
    assert objects["lemmas"]["dogs"] == "dog"


def test_boxes_of_another_image_size_are_scaled_to_the_store(tmp_path):
    entities = one_image(tmp_path, "[/EN#1/animals a dog]", boxed("1", (11, 21, 31, 41)))
    objects, counts = objects_of(entities, "a dog", {"dog"}, size=(200, 150))
    assert objects["images"]["1"][0][0]["boxes"] == [[20, 60, 60, 120]]
    assert objects["sizes"] == {"1": [200, 150]}
    assert counts["images_rescaled"] == 1


def test_sentences_in_another_order_are_matched_by_wording(tmp_path):
    lines = "A [/EN#1/animals cat] .\nA [/EN#1/animals dog] .\nA [/EN#1/animals horse] ."
    entities = one_image(tmp_path, lines, boxed("1", (1, 1, 9, 9)))
    texts = ["a dog", "a cat", "a horse runs", "a cow"]
    captions = [Caption("1", "train", n, text.split(), text) for n, text in enumerate(texts)]
    masks = [np.array([0, 1, 0][: len(text.split())]) for text in texts]
    lemmas = {word: word for text in texts for word in text.split()}
    objects, counts = build_objects(read_entities(entities, ["1"]), captions, masks, lemmas, {"1": (100, 50)}, 1)
    found = [[entry["class"] for entry in entries] for entries in objects["images"]["1"]]
    assert found == [["dog"], ["cat"], ["horse"], []]
    assert counts["captions_without_sentence"] == 1


def test_objects_of_the_toy_data(toy_data, toy_folder):
    objects = PreparedFolder(toy_folder).objects()
    captions = read_karpathy(toy_data.captions)
    assert objects["classes"] == sorted(toy_data.nouns)
    assert set(objects["images"]) == {caption.image_id for caption in captions}
    assert set(objects["lemmas"]) >= set(PreparedFolder(toy_folder).noun_table())
    for caption in captions:
        xml = (toy_data.entities / "Annotations" / f"{caption.image_id}.xml").read_text()
        boxes = [[int(n) - 1 for n in re.findall(r"<[xy]m\w+>(\d+)", part)] for part in xml.split("</object>")[:2]]
        entries = objects["images"][caption.image_id][caption.index]
        assert [entry["word"] for entry in entries] == [
            n for n, word in enumerate(caption.tokens) if word in toy_data.nouns
        ]
        assert [entry["class"] for entry in entries] == [w for w in caption.tokens if w in toy_data.nouns]
        assert [entry["boxes"] for entry in entries] == [[box] for box in boxes]
        assert objects["splits"][caption.image_id] == caption.split


def test_all_phrases_of_the_real_annotation_are_tied(shared, tmp_path):
    pack = shared / "data" / "flickr8k"
    if not pack.is_dir():
        pytest.skip(f"needs {pack}")
    captions = {}
    for image in json.loads((pack / "dataset.json").read_text())["images"]:
        captions[Path(image["filename"]).stem] = [sentence["tokens"] for sentence in image["sentences"]]
    phrases = 0
    for path in sorted((pack / "entities" / "Sentences").glob("*.txt")):
        annotation = read_annotation(pack / "entities" / "Annotations" / f"{path.stem}.xml")
        for sentence, tokens in zip(read_sentences(path), captions[path.stem], strict=True):
            for phrase, span in zip(sentence.phrases, tie(sentence, tokens)):
                phrases += 1
                assert phrase.entity in annotation.boxes
                words = [word.lower() for word in sentence.words[phrase.first : phrase.stop]]
                assert tokens[span[0] : span[1]] == [word for word in words if re.search(r"\w", word)]
    assert phrases == 1318
