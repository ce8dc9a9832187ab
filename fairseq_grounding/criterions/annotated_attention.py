"""Where a captioner should look according to annotated boxes: the upper bound of what a teacher can give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.grounded_caption_dataset import GroundedCaptionDataset
from ..data.prepared import PreparedFolder
from ..errors import GroundingError
from ..scoring.iou import THRESHOLD, region_overlaps

BOXES = ("best", "all", "soft")

# of the softmax over overlaps, as in the code behind the published numbers
SOFTNESS = 0.5

# which losses mean something for each
LOSSES = {
    "best": ("kl", "reverse-kl", "nll", "nll-all"),
    "all": ("kl", "reverse-kl", "nll-all"),
    "soft": ("kl", "reverse-kl"),
}

# of a caption: the words that look somewhere (N,), and where (N,R)
WordTargets = tuple[Tensor, Tensor]


def annotated_target(overlaps: Tensor, boxes: str) -> tuple[Tensor, Tensor]:
    """From overlaps to where a word should look.

    Args:
        overlaps: (N,R) intersection over union of each region with a word's box; of several boxes the largest
        boxes: ``best``: the region of largest overlap, where that is above 0.5; ``all``: every region above 0.5
            (POS-SCAN, Eq. 16); ``soft``: softmax of overlap / 0.5 over regions

    Returns:
        target (N,R): 1 at each right region, for ``soft`` a distribution; and whether the word has one (N,)
    """
    if boxes == "soft":
        return (overlaps / SOFTNESS).softmax(1), torch.ones(len(overlaps), dtype=torch.bool, device=overlaps.device)
    right = overlaps > THRESHOLD
    if boxes == "best":
        best = torch.zeros_like(right).scatter_(1, overlaps.argmax(1, keepdim=True), True)
        right = right & best
    return right.to(overlaps.dtype), right.any(1)


class AnnotatedAttention:
    """Reads where each word of a given caption should look off the prepared folder's entity boxes.

    An image's overlaps are computed once, when its first caption comes.

    Args:
        folder: prepared with ``--entities``
        boxes: ``best``, ``all`` or ``soft``, see :func:`annotated_target`
        kind: of the attention loss; with ``all`` and any but ``nll-all`` right regions share the attention equally
        datasets: the task's, by split

    Raises:
        GroundingError: the folder holds no box of a training image, or the loss means nothing with these boxes
    """

    def __init__(self, folder: PreparedFolder, boxes: str, kind: str, datasets: Mapping[str, GroundedCaptionDataset]):
        if kind not in LOSSES[boxes]:
            raise GroundingError(
                f"--attention-loss {kind} means nothing with --attention-boxes {boxes}; give {', '.join(LOSSES[boxes])}"
            )
        objects = folder.objects()
        if objects is None or "train" not in objects["splits"].values():
            raise GroundingError(
                f"--attention-target annotation: {folder.path} holds no entity boxes of training images; prepare it"
                " with --entities of these images, or learn from a teacher"
            )
        self.boxes, self.kind, self.datasets = boxes, kind, datasets
        self._annotated: dict[str, list[list[dict[str, Any]]]] = objects["images"]
        self._images: dict[tuple[str, int], list[WordTargets]] = {}

    def __call__(self, words: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Target (B,W,R) and mask (B,W) of a batch of given captions, whose ``target`` (B,W) holds words."""
        read = words["target"]
        dataset = self.datasets[words["split"]]
        ends = read.ne(dataset.dictionary.pad()).sum(1).tolist()
        wanted = torch.zeros(*read.shape, words["net_input"]["src_tokens"].shape[1])
        mask = torch.zeros(read.shape, dtype=torch.bool)
        for row, caption in enumerate(words["caption"].tolist()):
            places, targets = self._of_caption(dataset, caption)
            # a word that was cut off, or became the end, looks nowhere
            kept = places < ends[row] - 1
            wanted[row, places[kept], : targets.shape[1]] = targets[kept]
            mask[row, places[kept]] = True
        return wanted.to(read.device), mask.to(read.device)

    def _of_caption(self, dataset: GroundedCaptionDataset, caption: int) -> WordTargets:
        image = int(dataset.image_of_caption[caption])
        key = dataset.split.name, image
        if key not in self._images:
            self._images[key] = self._of_image(dataset, image)
        return self._images[key][caption - int(dataset.first_caption[image])]

    def _of_image(self, dataset: GroundedCaptionDataset, image: int) -> list[WordTargets]:
        regions = dataset.store.boxes(int(dataset.stored[image]), limit=dataset.max_regions)
        annotated = self._annotated.get(dataset.image_ids[image], [])
        targets = []
        for caption in dataset.captions_of_image(image):
            index = int(dataset.split.caption_index[caption])
            boxes: dict[int, list[Any]] = {}
            for entry in annotated[index] if index < len(annotated) else []:
                boxes.setdefault(entry["word"], []).extend(entry["boxes"])
            overlaps = [region_overlaps(regions, own).max(1) for own in boxes.values()]
            overlap = torch.tensor(np.array(overlaps).reshape(-1, len(regions)), dtype=torch.float32)
            target, looks = annotated_target(overlap, self.boxes)
            if self.boxes == "all" and self.kind != "nll-all":
                target = target / target.sum(1, keepdim=True).clamp(min=1.0)
            targets.append((torch.tensor(list(boxes), dtype=torch.long)[looks], target[looks]))
        return targets
