"""The grounding dump: what is written is read back, and nothing half-written or malformed gets through."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_grounding.dump import DumpWriter, read_dump
from fairseq_grounding.errors import GroundingError


def make_row(**changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": 0,
        "image_id": "1001",
        "caption_index": 2,
        "model": "up_down",
        "reference": True,
        "text": "a dog",
        "tokens": ["a", "dog"],
        "steps": [
            {
                "token": "a",
                "region": 1,
                "box": [0.0, 1.0, 2.0, 3.0],
                "attention": [0.25, 0.75],
                "logprob": -0.5,
            },
            {"token": "dog", "region": None, "box": None, "attention": None, "logprob": None},
        ],
    }
    row.update(changes)
    return row


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_appears_with_the_last_expected_row_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    writer = DumpWriter(path, 2)
    writer.write(make_row())
    assert not path.exists()
    writer.write(make_row(image_id="Bild Ä", caption_index=None))
    assert names(tmp_path) == ["test.jsonl"]
    assert list(read_dump(path)) == [make_row(), make_row(image_id="Bild Ä", caption_index=None)]
    writer.close()
    with pytest.raises(GroundingError, match="complete"):
        writer.write(make_row())
    assert len(list(read_dump(path))) == 2


def test_unknown_number_of_rows_is_complete_when_closed(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "a.jsonl") as writer:
        writer.write(make_row())
        assert not (tmp_path / "a.jsonl").exists()
    assert names(tmp_path) == ["a.jsonl"]


def test_incomplete_leaves_nothing_and_keeps_the_former_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("former")
    writer = DumpWriter(path, 2)
    writer.write(make_row())
    writer.close()
    assert names(tmp_path) == ["a.jsonl"]
    assert path.read_text() == "former"

    writer = DumpWriter(path, 2)
    writer.write(make_row())
    assert len(names(tmp_path)) == 2
    del writer
    gc.collect()
    assert names(tmp_path) == ["a.jsonl"]

    with pytest.raises(GroundingError), DumpWriter(path) as writer:
        writer.write({})
    assert names(tmp_path) == ["a.jsonl"]
    assert path.read_text() == "former"


@pytest.mark.parametrize("ending", ["", "raise RuntimeError"])
def test_exit_leaves_nothing(tmp_path: Path, ending: str) -> None:
    program = (
        "import json, sys\nfrom fairseq_grounding.dump import DumpWriter\n"
        f"writer = DumpWriter({str(tmp_path / 'a.jsonl')!r}, 2)\n"
        f"writer.write(json.loads(sys.argv[1]))\n{ending}"
    )
    subprocess.run([sys.executable, "-c", program, json.dumps(make_row())], stderr=subprocess.DEVNULL, check=False)
    assert names(tmp_path) == []


def test_rounding_and_array_scalars(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    steps = [
        {
            "token": "dog",
            "region": np.int64(1),
            "box": np.array([1, 2, 3, 4], dtype=np.float32),
            "attention": np.array([1 / 3, 2 / 3]),
            "logprob": np.float32(-1.23456789),
        }
    ]
    DumpWriter(path, 1).write(make_row(id=np.int64(7), text="dog", tokens=["dog"], steps=steps))
    (row,) = read_dump(path)
    assert row["id"] == 7
    assert row["steps"][0]["attention"] == [0.333333, 0.666667]
    assert row["steps"][0]["logprob"] == -1.234568
    assert row["steps"][0]["box"] == [1.0, 2.0, 3.0, 4.0]


@given(
    st.lists(
        st.tuples(st.text(max_size=5), st.lists(st.floats(0, 1), min_size=1, max_size=4), st.floats(-50, 0)),
        max_size=5,
    )
)
def test_any_row_reads_back(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    path = tmp_path_factory.mktemp("dump") / "a.jsonl"
    row = make_row(
        tokens=[token for token, _, _ in steps],
        steps=[
            {"token": t, "region": int(np.argmax(a)), "box": [0, 0, 1, 1], "attention": a, "logprob": p}
            for t, a, p in steps
        ],
    )
    DumpWriter(path, 1).write(row)
    (read,) = read_dump(path)
    assert read["tokens"] == row["tokens"]
    for before, after in zip(row["steps"], read["steps"]):
        np.testing.assert_allclose(after["attention"], before["attention"], rtol=0, atol=5.1e-7)
        np.testing.assert_allclose(after["logprob"], before["logprob"], rtol=0, atol=5.1e-7)


def with_step(**changes: Any) -> dict[str, Any]:
    row = make_row()
    row["steps"][0].update(changes)
    return row


FAULTS: list[tuple[Any, str]] = [
    ([], "not a JSON object"),
    ({"image_id": "1"}, "lacks id, caption_index"),
    (make_row(id=None), "id is neither"),
    (make_row(image_id=5), "image_id is not a string"),
    (make_row(caption_index=-1), "caption_index"),
    (make_row(caption_index=True), "caption_index"),
    (make_row(reference=1), "reference"),
    (make_row(tokens=["a"]), "each of the 1 tokens"),
    (make_row(tokens=["a", "cat"]), "'dog' is not the 'cat'"),
    (make_row(tokens="ab"), "tokens is not a list"),
    (with_step(box=[1, 2, 3]), "box is neither"),
    (with_step(region=2), "region 2 is beyond the 2 regions"),
    (with_step(region=None), "region is null"),
    (with_step(attention=[None, 1]), "attention is neither"),
    (with_step(attention=[0.5, True]), "attention is neither"),
    (with_step(box=[0, 0, 1, 10**400]), "box is neither"),
    (with_step(logprob="0"), r"step 0 \(image 1001\): logprob"),
]


@pytest.mark.parametrize(("row", "message"), FAULTS, ids=[f"{n} {message}" for n, (_, message) in enumerate(FAULTS)])
def test_faulty_row_is_named(tmp_path: Path, row: Any, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(make_row()) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(GroundingError, match=message) as caught:
        list(read_dump(path))
    assert f"{path}, line 2: " in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(GroundingError, match=message):
        DumpWriter(tmp_path / "b.jsonl", 1).write(row)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_nan_comes_in_or_out(tmp_path: Path, value: float) -> None:
    path = tmp_path / "a.jsonl"
    with pytest.raises(GroundingError, match="finite"):
        DumpWriter(path, 1).write(with_step(logprob=value))
    path.write_text(json.dumps(with_step(logprob=value)) + "\n")
    with pytest.raises(GroundingError, match="line 1: is not valid JSON"):
        list(read_dump(path))


def test_files_that_are_no_dump(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with pytest.raises(GroundingError, match="cannot be read"):
        list(read_dump(path))
    path.write_text("")
    with pytest.raises(GroundingError, match="is empty"):
        list(read_dump(path))
    path.write_text(json.dumps(make_row())[:-5])
    with pytest.raises(GroundingError, match="line 1: is not valid JSON"):
        list(read_dump(path))
    path.write_bytes(b"\x89HDF\r\n\xff")
    with pytest.raises(GroundingError, match="not UTF-8"):
        list(read_dump(path))
    with pytest.raises(GroundingError, match="does not exist"):
        DumpWriter(tmp_path / "no" / "a.jsonl", 1)
    with pytest.raises(GroundingError, match="is a folder"):
        DumpWriter(tmp_path, 1)
    with pytest.raises(GroundingError, match="no caption"):
        DumpWriter(tmp_path / "b.jsonl", 0)
