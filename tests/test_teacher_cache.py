"""The file of a teacher's attention: what is written is read back, and what does not fit is refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.caching import cache_teacher
from fairseq_grounding.criterions.attention_supervision import AttentionSupervision, AttentionSupervisionConfig
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.data.regions import RegionStore, RegionWriter
from fairseq_grounding.data.teacher_cache import Origin, SplitAttention, TeacherCache, write_teacher_cache
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.tasks.grounded_caption import GroundedCaptionConfig, GroundedCaptionTask

from . import commands

ORIGIN = Origin(folder="f", regions="r", teacher="t", readout="normalised", nouns_only=True)

# of each caption its words and regions; a caption may have no word
SHAPES = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), min_size=1, max_size=6)


def attention_of(shapes: list[tuple[int, int]], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(words, regions, generator=generator) for words, regions in shapes]


def split_of(rows: list[torch.Tensor]) -> SplitAttention:
    words, regions = np.array([tuple(row.shape) for row in rows]).T
    return SplitAttention(words, regions, [(row, grounded_of(row)) for row in rows])


def grounded_of(row: torch.Tensor) -> torch.Tensor:
    """Some of its words."""
    return row.sum(1) > 1.0


@settings(max_examples=30, deadline=None)
@given(
    train=SHAPES,
    valid=SHAPES,
    seed=st.integers(0, 2**20),
    half=st.booleans(),
    more=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    data=st.data(),
)
def test_what_is_written_is_read_back_in_any_order(tmp_path_factory, train, valid, seed, half, more, data) -> None:
    path = tmp_path_factory.mktemp("cache") / "a.h5"
    rows = {"train": attention_of(train, seed), "valid": attention_of(valid, seed + 1)}
    dtype = "float16" if half else "float32"
    write_teacher_cache(path, ORIGIN, {name: split_of(own) for name, own in rows.items()}, dtype)
    # as a data-loading process gets it
    cache = pickle.loads(pickle.dumps(TeacherCache(path)))
    assert cache.origin == ORIGIN
    for name, own in rows.items():
        chosen = data.draw(st.lists(st.integers(0, len(own) - 1), min_size=1, max_size=8))
        widest = [max(own[number].shape[side] for number in chosen) + more[side] for side in (0, 1)]
        found, grounded = cache.attention(name, chosen, *widest)
        assert grounded.shape == found.shape[:2]
        assert found.shape == (len(chosen), *widest)
        assert found.dtype == torch.float32
        for got, mask, number in zip(found, grounded, chosen):
            words, regions = own[number].shape
            assert torch.equal(mask[:words], grounded_of(own[number]))
            assert not mask[words:].any()
            assert torch.allclose(got[:words, :regions], own[number], rtol=0, atol=5e-4 if half else 0)
            assert not got[words:].any()
            assert not got[:, regions:].any()


def test_a_cache_in_use_is_pickled_without_what_it_mapped(tmp_path: Path) -> None:
    rows = attention_of([(40, 50)] * 20, 3)
    write_teacher_cache(tmp_path / "a.h5", ORIGIN, {"train": split_of(rows)}, "float32")
    cache = TeacherCache(tmp_path / "a.h5")
    before, _ = cache.attention("train", [7], 40, 50)
    packed = pickle.dumps(cache)
    assert len(packed) < 2000
    assert torch.equal(pickle.loads(packed).attention("train", [7], 40, 50)[0], before)


def test_writing_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.h5", attention_of([(2, 3), (1, 3)], 0)
    write_teacher_cache(path, ORIGIN, {"train": split_of(rows)}, "float32")
    before = path.read_bytes()

    def failing() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield rows[0], grounded_of(rows[0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_teacher_cache(path, ORIGIN, {"train": split_of(rows)._replace(rows=failing())}, "float32")
    assert [file.name for file in tmp_path.iterdir()] == ["a.h5"]
    assert path.read_bytes() == before


def test_a_file_cut_short_and_a_split_that_is_not_there_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write_teacher_cache(path, ORIGIN, {"train": split_of(attention_of([(9, 9)] * 9, 0))}, "float32")
    with pytest.raises(GroundingError, match=r"not the split 'valid'; run .* --split train,valid"):
        TeacherCache(path).shapes("valid")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(GroundingError, match=r"a\.h5: cannot be read as HDF5 or is cut short"):
        TeacherCache(path)


@pytest.fixture(scope="module")
def teacher(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("teacher")
    commands.train(toy_folder, run, "pos_scan", "--batch-size", "16", "--max-update", "2")
    return run / "checkpoint_last.pt"


def test_other_regions_of_equal_numbers_are_refused(toy_folder: Path, teacher: Path, tmp_path: Path) -> None:
    """Another detector's 36 regions an image differ from the first one's in nothing but what they hold."""
    folder = PreparedFolder(toy_folder)
    store = RegionStore(folder.regions_path)
    other = tmp_path / "other.h5"
    with RegionWriter(other, source="toy") as writer:
        for number, image_id in enumerate(store.image_ids):
            width, height = (int(side) for side in store.image_sizes[number])
            features = np.roll(store.features(number), 1, axis=0)
            writer.add(image_id, features, np.roll(store.boxes(number), 1, axis=0), (width, height))

    def cached(out: Path, regions: Path | None) -> Path:
        options = {"splits": ["train", "valid"], "readout": "normalised", "dtype": "float32", "cpu": True}
        assert cache_teacher(toy_folder, teacher, out, regions=regions, **options) == 100
        return out

    def supervision(cache: Path, regions: Path | None) -> AttentionSupervision:
        task = GroundedCaptionTask(GroundedCaptionConfig(data=str(toy_folder), regions=regions and str(regions)))
        return AttentionSupervision(AttentionSupervisionConfig(teacher_attention=str(cache)), task)

    caches = {regions: cached(tmp_path / f"{n}.attention.h5", regions) for n, regions in enumerate((None, other))}
    for regions, cache in caches.items():
        supervision(cache, regions)
        wrong = other if regions is None else None
        with pytest.raises(GroundingError, match=f"{cache.name}: was made of other regions than .*--regions"):
            supervision(cache, wrong)
