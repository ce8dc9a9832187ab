"""What models read of a batch's regions."""

from __future__ import annotations

import torch
from torch import Tensor

GEOMETRY_SIZE = {"none": 0, "box5": 5}

# how far from the image's own a side of a box may be, in parts of the image, for the box to cover it; a bit more
# than 1%, since a box may end at the last pixel of a small image and half precision rounds
EDGE = 0.0105


def image_region_mask(src_tokens: Tensor, image_index: Tensor, images: int, pad: int) -> Tensor:
    """Which regions of each image are real.

    Args:
        src_tokens: (B,R), *pad* where a caption's image has no region
        image_index: (B,) from caption to image; every image has a caption
        images: I

    Returns:
        (I,R) bool, True = real
    """
    mask = torch.zeros(images, src_tokens.shape[1], dtype=torch.bool, device=src_tokens.device)
    mask[image_index] = src_tokens.ne(pad)
    return mask


def with_geometry(features: Tensor, boxes: Tensor, geometry: str) -> Tensor:
    """Append where a region lies to what is in it.

    Args:
        features: (I,R,D)
        boxes: (I,R,4) x0 y0 x1 y1 divided by the image's size
        geometry: ``none``, or ``box5``: x0 y0 x1 y1 and area, each moved from 0..1 to -1..1

    Returns:
        (I,R,D) or (I,R,D+5)
    """
    if geometry == "none":
        return features
    sides = boxes[..., 2:] - boxes[..., :2]
    area = sides.prod(-1, keepdim=True)
    return torch.cat([features, (torch.cat([boxes, area], -1) * 2 - 1).to(features.dtype)], -1)


def covers_image(boxes: Tensor, mask: Tensor) -> Tensor:
    """Which regions cover their image: those no side of which is further than 1% of the image from the image's own.

    Args:
        boxes: (I,R,4) x0 y0 x1 y1 divided by the image's size; mask: (I,R) True = real

    Returns:
        (I,R) bool
    """
    return mask & (boxes[..., :2] < EDGE).all(-1) & (boxes[..., 2:] > 1 - EDGE).all(-1)


def whole_image(features: Tensor, boxes: Tensor, mask: Tensor) -> Tensor:
    """The vector of each whole image: that of the region that covers it, or the mean of its regions where none does.

    Of several that cover it (:func:`covers_image`) the largest is taken.

    Args:
        features: (I,R,D); boxes: (I,R,4) x0 y0 x1 y1 divided by the image's size; mask: (I,R) True = real

    Returns:
        (I,D)
    """
    wide = boxes.float()
    covers = covers_image(wide, mask)
    area = (wide[..., 2:] - wide[..., :2]).prod(-1).masked_fill(~covers, -1.0)
    covering = features[torch.arange(len(features), device=features.device), area.argmax(1)]
    return torch.where(covers.any(1, keepdim=True), covering, mean_region(features, mask))


def mean_region(features: Tensor, mask: Tensor) -> Tensor:
    """The mean of each image's real regions: features (I,R,D), mask (I,R) True = real -> (I,D)."""
    return features.masked_fill(~mask[:, :, None], 0.0).sum(1) / mask.sum(1, keepdim=True)
