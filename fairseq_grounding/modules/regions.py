"""What models read of a batch's regions."""

from __future__ import annotations

import torch
from torch import Tensor

GEOMETRY_SIZE = {"none": 0, "box5": 5}


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
