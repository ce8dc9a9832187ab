"""Regions as a captioner sees them: embedded once an image, handed out once a caption."""

from __future__ import annotations

from typing import Any

from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from .regions import GEOMETRY_SIZE, image_region_mask, with_geometry

GLOBAL_FEATURES = ("raw-mean", "embedded-mean")


class RegionEncoder(FairseqEncoder):
    """Embeds regions, the attention's keys, and one global vector.

    Each embedding is linear, ReLU and dropout (Anderson et al., CVPR 2018, as the POS-SCAN code runs it).

    Args:
        dictionary: for the padding symbol
        feature_size: D
        hidden_size: H, of embedded regions and of the global vector
        key_size: A, of the attention's keys
        geometry: ``none`` or ``box5``
        global_feature: ``raw-mean``: the mean raw feature, embedded with weights of its own (what produced the
            published numbers); ``embedded-mean``: the mean of embedded regions (as printed)
        dropout: after each embedding
    """

    def __init__(
        self,
        dictionary,
        feature_size: int,
        hidden_size: int,
        key_size: int,
        geometry: str = "none",
        global_feature: str = "raw-mean",
        dropout: float = 0.5,
    ):
        super().__init__(dictionary)
        self.geometry = geometry
        width = feature_size + GEOMETRY_SIZE[geometry]
        self.region_embedding = nn.Sequential(nn.Linear(width, hidden_size), nn.ReLU(), nn.Dropout(dropout))
        self.global_embedding = None
        if global_feature == "raw-mean":
            self.global_embedding = nn.Sequential(nn.Linear(feature_size, hidden_size), nn.ReLU(), nn.Dropout(dropout))
        self.key_projection = nn.Linear(hidden_size, key_size)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        features: Tensor,
        boxes: Tensor,
        image_index: Tensor,
        **unused: Any,
    ) -> dict[str, Tensor]:
        """Encode a batch of I images for its B captions.

        Args:
            src_tokens: (B,R), padding where a region is not real; src_lengths: (B,)
            features: (I,R,D); boxes: (I,R,4) relative to the image; image_index: (B,)

        Returns:
            what :meth:`readable` gives, ``mask`` (B,R) True = real, ``global`` (B,H)
        """
        pad = self.dictionary.pad()
        real = image_region_mask(src_tokens, image_index, len(features), pad)[:, :, None]
        values = self.region_embedding(with_geometry(features, boxes, self.geometry))
        raw = values if self.global_embedding is None else features
        mean = raw.masked_fill(~real, 0.0).sum(1) / real.sum(1)
        encoded = self.readable(values, real)
        encoded["global"] = mean if self.global_embedding is None else self.global_embedding(mean)
        expanded = {name: tensor.index_select(0, image_index) for name, tensor in encoded.items()}
        expanded["mask"] = src_tokens.ne(pad)
        return expanded

    def readable(self, values: Tensor, real: Tensor) -> dict[str, Tensor]:
        """What attention reads of embedded regions (I,R,H), real (I,R,1): ``values`` (I,R,H), ``keys`` (I,R,A)."""
        return {"values": values.masked_fill(~real, 0.0), "keys": self.key_projection(values)}

    def reorder_encoder_out(self, encoder_out: dict[str, Tensor], new_order: Tensor) -> dict[str, Tensor]:
        """Rows in another order, as beam search wants them."""
        return {name: tensor.index_select(0, new_order) for name, tensor in encoder_out.items()}

    def max_positions(self) -> None:
        """No limit of its own."""
        return None
