"""What supervises a captioner's attention: a teacher's cache against the teacher, annotation against plain loops."""

from __future__ import annotations

import math
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.cli import main
from fairseq_grounding.criterions.annotated_attention import AnnotatedAttention, annotated_target
from fairseq_grounding.criterions.attention_supervision import AttentionSupervision, AttentionSupervisionConfig
from fairseq_grounding.data.grounded_caption_dataset import GroundedCaptionDataset
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.data.regions import RegionStore
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.tasks.grounded_caption import GroundedCaptionConfig, GroundedCaptionTask

from . import commands

DISTILL = ("--criterion", "kl_attention_distill", "--items", "group", "--batch-size", "4", "--attention-weight", "1")


@pytest.fixture(scope="module")
def teachers(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("teachers")
    for arch in ("scan", "pos_scan"):
        commands.train(toy_folder, runs / arch, arch, "--batch-size", "16", "--max-epoch", "2")
    return runs


def checkpoint(teachers: Path, arch: str) -> str:
    return str(teachers / arch / "checkpoint_last.pt")


def cache(folder: Path, teachers: Path, arch: str, out: Path, *flags: str) -> Path:
    teacher = checkpoint(teachers, arch)
    assert main(["cache-teacher", str(folder), "--teacher-path", teacher, "--out", str(out), "--cpu", *flags]) == 0
    return out


@pytest.mark.parametrize(("arch", "words"), [("pos_scan", "nouns"), ("scan", "all")])
@pytest.mark.parametrize("readout", ["normalised", "similarity"])
def test_losses_from_a_cache_equal_those_with_the_teacher(
    toy_folder: Path, teachers: Path, tmp_path: Path, arch: str, words: str, readout: str
) -> None:
    task = GroundedCaptionTask(GroundedCaptionConfig(data=str(toy_folder), items="group"))
    task.load_dataset("train")
    flags = {"attention_words": words, "teacher_readout": readout}
    live = AttentionSupervision(AttentionSupervisionConfig(teacher_path=checkpoint(teachers, arch), **flags), task)
    for dtype, tolerance in (("float32", 1e-6), ("float16", 1e-3)):
        out = cache(
            toy_folder, teachers, arch, tmp_path / f"{dtype}.h5", "--dtype", dtype, "--teacher-readout", readout
        )
        cached = AttentionSupervision(AttentionSupervisionConfig(teacher_attention=str(out), **flags), task)
        assert live.reads_any
        assert not cached.reads_any
        # in another order and grouping than the cache was written in
        for images in ([3, 0, 15], [7], list(range(4, 12))):
            sample = task.datasets["train"].collater(images)
            shape = (*sample["target"].shape, sample["net_input"]["src_tokens"].shape[1])
            attention = torch.randn(shape, generator=torch.Generator().manual_seed(1)).softmax(-1)
            (expected, count), (total, counted) = live(sample, attention), cached(sample, attention)
            assert int(count) == int(counted) > 0
            assert float(total / counted) == pytest.approx(float(expected / count), abs=tolerance)


def test_a_teacher_of_more_than_nouns_is_followed_at_all_that_it_grounds(toy_folder: Path, tmp_path: Path) -> None:
    commands.train(
        *(toy_folder, tmp_path / "wide", "pos_scan", "--ground-pos", "NOUN,ADJ", "--batch-size", "16"),
        *("--max-update", "1"),
    )
    last = tmp_path / "wide" / "checkpoint_last.pt"
    assert main(["cache-teacher", str(toy_folder), "--teacher-path", str(last), "--out", str(tmp_path / "a.h5")]) == 0
    task = GroundedCaptionTask(GroundedCaptionConfig(data=str(toy_folder), items="group"))
    task.load_dataset("train")
    sample = task.datasets["train"].collater([1, 2])
    adjectives = {"blue", "black", "yellow", "dirty"}
    words = [[task.dictionary[token] for token in row] for row in sample["target"].tolist()]
    grounded = sum(word in adjectives for row in words for word in row) + int(sample["noun_mask"].sum())
    assert grounded > int(sample["noun_mask"].sum())
    uniform = torch.full((*sample["target"].shape, sample["net_input"]["src_tokens"].shape[1]), 0.1)
    for source in ({"teacher_path": str(last)}, {"teacher_attention": str(tmp_path / "a.h5")}):
        count = AttentionSupervision(AttentionSupervisionConfig(**source), task)(sample, uniform)[1]
        assert int(count) == grounded


def test_a_run_from_a_cache_equals_one_with_the_teacher(toy_folder: Path, teachers: Path, tmp_path: Path) -> None:
    flags = (*DISTILL, "--max-epoch", "2", "--no-epoch-checkpoints")
    teacher = ("--teacher-path", checkpoint(teachers, "pos_scan"))
    live = commands.train(toy_folder, tmp_path / "live", "up_down", *flags, *teacher)
    out = cache(toy_folder, teachers, "pos_scan", tmp_path / "cache.h5", "--dtype", "float32")
    cached = commands.train(toy_folder, tmp_path / "run", "up_down", *flags, "--teacher-attention", str(out))
    for name, weights in live["model"].items():
        # its gradient is zero but for rounding, which Adam makes as large as any other
        if name != "decoder.attention.score.bias":
            assert torch.allclose(weights.float(), cached["model"][name].float(), atol=1e-5), name


def test_a_cache_that_does_not_fit_is_refused(toy_folder: Path, teachers: Path, tmp_path: Path, make_toy_data) -> None:
    from fairseq_grounding.data.prepare import prepare_captions

    out = cache(toy_folder, teachers, "pos_scan", tmp_path / "a.h5")
    train_only = cache(toy_folder, teachers, "pos_scan", tmp_path / "b.h5", "--split", "train")
    toy = make_toy_data(tmp_path / "other", seed=5)
    prepare_captions(toy.captions, toy.regions, toy.folder, threshold=1)
    (tmp_path / "text.h5").write_text("no HDF5")

    def refused(folder: Path, *flags: str) -> str:
        with pytest.raises(GroundingError) as error:
            commands.train(folder, tmp_path / "run", "up_down", *DISTILL, "--max-update", "1", *flags)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "made of other captions" in refused(toy.folder, "--teacher-attention", str(out))
    assert "not --teacher-readout similarity" in refused(
        toy_folder, "--teacher-attention", str(out), "--teacher-readout", "similarity"
    )
    scan = checkpoint(teachers, "scan")
    assert "other weights" in refused(toy_folder, "--teacher-attention", str(out), "--teacher-path", scan)
    assert "not the split 'valid'" in refused(toy_folder, "--teacher-attention", str(train_only))
    assert "nouns only" in refused(toy_folder, "--teacher-attention", str(out), "--attention-words", "all")
    assert "--max-target-positions" in refused(
        toy_folder, "--teacher-attention", str(out), "--max-target-positions", "5"
    )
    assert "--max-regions" in refused(toy_folder, "--teacher-attention", str(out), "--max-regions", "3")
    assert "cannot be read as HDF5" in refused(toy_folder, "--teacher-attention", str(tmp_path / "text.h5"))
    assert "no such file" in refused(toy_folder, "--teacher-attention", str(tmp_path / "none.h5"))
    assert "is not a teacher's attention" in refused(
        toy_folder, "--teacher-attention", str(PreparedFolder(toy_folder).regions_path)
    )
    # the right teacher beside its cache is welcome
    right = ("--teacher-attention", str(out), "--teacher-path", checkpoint(teachers, "pos_scan"))
    commands.train(toy_folder, tmp_path / "run", "up_down", *DISTILL, "--max-update", "1", *right)


def test_cached_rows_are_distributions_at_nouns(toy_folder: Path, teachers: Path, tmp_path: Path) -> None:
    out = cache(toy_folder, teachers, "pos_scan", tmp_path / "a.h5", "--dtype", "float32")
    split, store = PreparedFolder(toy_folder).split("train"), RegionStore(PreparedFolder(toy_folder).regions_path)
    with h5py.File(out) as file:
        group = file["train"]
        for number in (0, 7, len(split) - 1):
            words, regions = group["words"][number], group["regions"][number]
            assert words == len(split.tokens[number]) - 1
            assert regions == store.counts[store.index(split.image_ids[number])]
            start, end = group["offsets"][number : number + 2]
            rows = group["attention"][start:end].reshape(words, regions)
            np.testing.assert_allclose(rows.sum(1), split.nouns[number][:-1].numpy(), atol=1e-5)


def plain_overlap(region, box) -> float:
    """Intersection over union of a region and an annotated box, which ends after its last pixel."""
    x0, y0, x1, y1 = box[0], box[1], box[2] + 1, box[3] + 1
    wide, high = min(region[2], x1) - max(region[0], x0), min(region[3], y1) - max(region[1], y0)
    shared = max(0.0, wide) * max(0.0, high)
    return shared / ((region[2] - region[0]) * (region[3] - region[1]) + (x1 - x0) * (y1 - y0) - shared)


@pytest.mark.parametrize(("boxes", "kind"), [("best", "nll"), ("all", "nll-all"), ("all", "kl"), ("soft", "kl")])
def test_annotation_against_plain_loops(toy_folder: Path, boxes: str, kind: str) -> None:
    folder = PreparedFolder(toy_folder)
    store, objects = RegionStore(folder.regions_path), folder.objects()
    assert objects is not None
    dataset = GroundedCaptionDataset(folder.split("train"), store, folder.dictionary(), "caption", max_tokens=6)
    sample = dataset.collater(list(range(23)))
    target, mask = AnnotatedAttention(folder, boxes, kind, {"train": dataset})(sample)
    looked = 0
    for row in range(23):
        image_id, index = dataset.split.image_ids[row], int(dataset.split.caption_index[row])
        regions = store.boxes(store.index(image_id)).tolist()
        entries = {entry["word"]: entry["boxes"] for entry in objects["images"][image_id][index]}
        for place in range(target.shape[1]):
            overlaps = [max(plain_overlap(r, b) for b in entries[place]) for r in regions] if place in entries else []
            cut = place >= int(sample["target"][row].ne(1).sum()) - 1
            if boxes == "soft":
                counts = bool(overlaps) and not cut
                total = sum(math.exp(o / 0.5) for o in overlaps)
                expected = [math.exp(o / 0.5) / total for o in overlaps]
            else:
                counts = bool(overlaps) and not cut and max(overlaps) > 0.5
                right = [o > 0.5 and (boxes == "all" or o == max(overlaps)) for o in overlaps]
                share = sum(right) if kind == "kl" else 1
                expected = [r / max(1, share) for r in right]
            assert bool(mask[row, place]) == counts, (row, place)
            wanted = torch.zeros(target.shape[2])
            if counts:
                wanted[: len(expected)] = torch.tensor(expected)
                looked += 1
            assert torch.allclose(target[row, place], wanted, atol=1e-6), (row, place)
    assert looked > 20


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**20), st.integers(0, 4), st.integers(1, 6), st.sampled_from(["best", "all", "soft"]))
def test_targets_follow_permuted_regions(seed: int, words: int, regions: int, boxes: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    overlaps = torch.rand(words, regions, generator=generator, dtype=torch.float64)
    target, looks = annotated_target(overlaps, boxes)
    order = torch.randperm(regions, generator=generator)
    moved, still = annotated_target(overlaps[:, order], boxes)
    assert torch.equal(looks, still)
    assert torch.allclose(moved, target[:, order])
    if boxes != "soft":
        assert torch.equal(looks, overlaps.max(1).values > 0.5)
        assert ((target == 0) | (overlaps > 0.5)).all()


@pytest.mark.parametrize(("boxes", "kind"), [("best", "nll"), ("all", "nll-all"), ("soft", "reverse-kl")])
def test_training_on_annotation_moves_attention_to_the_boxes(
    toy_folder: Path, tmp_path: Path, boxes: str, kind: str
) -> None:
    flags = (*DISTILL, "--attention-target", "annotation", "--attention-boxes", boxes, "--attention-loss", kind)
    commands.train(
        *(toy_folder, tmp_path / "run", "up_down", *flags, "--max-epoch", "25", "--no-epoch-checkpoints"),
        *("--lr", "0.02", "--dropout", "0", "--disable-validation"),
    )
    last = tmp_path / "run" / "checkpoint_last.pt"
    alone = commands.validate(toy_folder, last, "--eval-grounding", subset="train")
    # of 4 to 9 regions
    assert alone["valid_attention_accuracy"] > 0.6


def test_annotation_is_refused_where_it_means_nothing(
    toy_data, toy_folder: Path, teachers: Path, tmp_path: Path
) -> None:
    from fairseq_grounding.data.prepare import prepare_captions

    prepare_captions(toy_data.captions, toy_data.regions, tmp_path / "bare", threshold=1)
    annotation = ("--attention-target", "annotation")
    for folder, flags, line in (
        (tmp_path / "bare", annotation, "holds no entity boxes of training images"),
        (toy_folder, (*annotation, "--attention-boxes", "soft", "--attention-loss", "nll"), "means nothing"),
        (toy_folder, (*annotation, "--attention-boxes", "all", "--attention-loss", "nll"), "kl, reverse-kl, nll-all"),
        (toy_folder, (*annotation, "--teacher-path", checkpoint(teachers, "scan")), "takes no teacher"),
        (toy_folder, ("--teacher-path", checkpoint(teachers, "scan"), "--attention-loss", "nll-all"), "give nll"),
        (toy_folder, (), "--teacher-path CHECKPOINT, --teacher-attention"),
    ):
        with pytest.raises(GroundingError, match=line):
            commands.train(folder, tmp_path / "run", "up_down", *DISTILL, "--max-update", "1", *flags)
