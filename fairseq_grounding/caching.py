"""A teacher's attention on whole splits, written once for all the captioners that it teaches."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from fairseq import utils
from torch import Tensor
from tqdm import tqdm

from .checkpoints import load_matching_model
from .data.grounded_caption_dataset import GroundedCaptionDataset
from .data.prepared import PreparedFolder
from .data.teacher_cache import Origin, SplitAttention, write_teacher_cache
from .modules.teacher import Teacher, weights_hash

# images at once; the teacher reads each with all its captions
IMAGES = 32


def cache_teacher(
    data: str | os.PathLike[str],
    teacher_path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    splits: Sequence[str],
    readout: str,
    dtype: str,
    regions: str | os.PathLike[str] | None = None,
    max_regions: int = 100,
    max_target_positions: int = 50,
    cpu: bool = False,
) -> int:
    """Write the attention of a matching model on all captions of *splits*.

    Args:
        data: prepared folder
        teacher_path: the matching model's checkpoint
        out: file to write
        splits: names
        readout: ``normalised`` or ``similarity``
        dtype: ``float32`` or ``float16``
        regions: store; by default the folder's
        max_regions, max_target_positions: as the captioner's training will have them
        cpu: not on the GPU, even if there is one

    Returns:
        how many captions

    Raises:
        GroundingError: the model does not go with the folder, or a split is not there
    """
    folder = PreparedFolder(data)
    store = folder.region_store(regions)
    words = folder.dictionary()
    model = load_matching_model(teacher_path, "--teacher-path")
    teacher = Teacher(model, words, store.feature_size, f"--teacher-path {teacher_path}")
    datasets = {
        name: GroundedCaptionDataset(folder.split(name), store, words, "group", max_regions, max_target_positions)
        for name in splits
    }
    origin = Origin(
        folder=folder.content_hash(),
        regions=store.content_hash(),
        teacher=weights_hash(model),
        readout=readout,
        nouns_only=model.nouns_only,
    )
    content = {
        name: SplitAttention(
            dataset.caption_sizes - 1,
            dataset.region_counts[dataset.image_of_caption],
            _attention(teacher, dataset, readout, cpu, name),
        )
        for name, dataset in datasets.items()
    }
    write_teacher_cache(Path(out), origin, content, dtype)
    return sum(len(dataset.split) for dataset in datasets.values())


def _attention(
    teacher: Teacher, dataset: GroundedCaptionDataset, readout: str, cpu: bool, name: str
) -> Iterator[tuple[Tensor, Tensor]]:
    on_gpu = torch.cuda.is_available() and not cpu
    for start in tqdm(range(0, len(dataset), IMAGES), desc=name, unit=f" x {IMAGES} images", disable=None):
        sample = dataset.collater(list(range(start, min(start + IMAGES, len(dataset)))))
        sample = utils.move_to_cuda(sample) if on_gpu else sample
        attention, grounded = (tensor.cpu() for tensor in teacher.attention(sample, readout))
        lengths = (dataset.caption_sizes[sample["caption"].cpu().numpy()] - 1).tolist()
        for row, (length, regions) in enumerate(zip(lengths, sample["net_input"]["src_lengths"].tolist())):
            yield attention[row, :length, :regions], grounded[row, :length]
