"""What every image-text matching model offers: to its criterion, to a student, and as a reward."""

from __future__ import annotations

from typing import NamedTuple

import torch
from fairseq.models import BaseFairseqModel
from torch import Tensor

from ..errors import GroundingError
from .cross_attention import attend_pairs, l2_normalise
from .regions import image_region_mask
from .vocabulary import VocabularyMixin

READOUTS = ("normalised", "similarity")
READOUTS_HELP = (
    "normalised: softmax over regions of the word-normalised similarity, as published; similarity: softmax of"
    " temperature times cosine"
)


class Encoded(NamedTuple):
    """A batch in the joint space: regions (I,R,H), region_mask (I,R), words (C,W,H), word_mask and noun_mask (C,W)."""

    regions: Tensor
    region_mask: Tensor
    words: Tensor
    word_mask: Tensor
    noun_mask: Tensor


class MatchingModel(VocabularyMixin, BaseFairseqModel):
    """Scores images against captions, and says which region each word of a caption belongs to.

    A subclass defines :meth:`encode_regions`, :meth:`encode_words` and :meth:`scores`, and the read-out's
    ``norm`` and ``temperature``. Captions are read as ``target``: without the leading end symbol, and the final
    one is no word.
    """

    norm: str
    temperature: float
    feature_size: int
    nouns_only: bool = False

    def encode_regions(self, features: Tensor, boxes: Tensor) -> Tensor:
        """Embed regions: features (I,R,D), boxes (I,R,4) relative -> (I,R,H)."""
        raise NotImplementedError

    def encode_words(self, tokens: Tensor, word_mask: Tensor) -> Tensor:
        """Embed words in their sentence: tokens and mask (C,W) -> (C,W,H)."""
        raise NotImplementedError

    def scores(self, encoded: Encoded) -> Tensor:
        """The score of every image with every caption, (I,C)."""
        raise NotImplementedError

    def pair_scores(self, encoded: Encoded, image_index: Tensor) -> Tensor:
        """The score (C,) of each caption with its own image: image_index (C,) from caption to image.

        A subclass that can, computes it without the other pairs.
        """
        return self.scores(encoded)[image_index, torch.arange(len(image_index), device=image_index.device)]

    def reward(self, encoded: Encoded, image_index: Tensor) -> Tensor:
        """How well each caption fits its own image, (C,), comparable between captions of different lengths.

        A subclass whose score grows with the caption divides by its number of words.
        """
        return self.pair_scores(encoded, image_index)

    def grounded(self, tokens: Tensor, noun_mask: Tensor) -> Tensor:
        """The words that have something to look at, (C,W) bool: the nouns, unless a subclass knows more of them."""
        return noun_mask.bool()

    def attending(self, word_mask: Tensor, noun_mask: Tensor) -> Tensor:
        """The words that attend (C,W): all, or for a model on nouns the nouns; all where there is none."""
        if not self.nouns_only:
            return word_mask
        nouns = noun_mask & word_mask
        return torch.where(nouns.any(1, keepdim=True), nouns, word_mask)

    def attend(
        self,
        regions: Tensor,
        words: Tensor,
        region_mask: Tensor,
        word_mask: Tensor,
        noun_mask: Tensor,
        readout: str = "normalised",
    ) -> tuple[Tensor, Tensor]:
        """Where each word looks in its own image, and how well it fits what it sees.

        Args:
            regions: (B,R,H); words: (B,W,H); region_mask: (B,R); word_mask, noun_mask: (B,W)
            readout: ``normalised``: softmax over regions of the word-normalised similarity, as the reference
                reads it; ``similarity``: softmax over regions of temperature times cosine

        Returns:
            similarity (B,W) of each word with what it attends to, attention (B,W,R); both 0 at words that do
            not attend
        """
        if readout not in READOUTS:
            raise ValueError(f"readout is {readout!r}; it can be {', '.join(READOUTS)}")
        norm = self.norm
        if readout == "similarity":
            norm = "none"
            regions, words = l2_normalise(regions), l2_normalise(words)
        mask = self.attending(word_mask, noun_mask)
        return attend_pairs(regions, words, region_mask, mask, norm=norm, temperature=self.temperature)

    def attend_own(self, encoded: Encoded, image_index: Tensor, readout: str) -> tuple[Tensor, Tensor]:
        """:meth:`attend` for each caption of a batch in its own image: image_index (C,) from caption to image."""
        return self.attend(
            encoded.regions[image_index],
            encoded.words,
            encoded.region_mask[image_index],
            encoded.word_mask,
            encoded.noun_mask,
            readout,
        )

    def encode(
        self,
        src_tokens: Tensor,
        features: Tensor,
        boxes: Tensor,
        image_index: Tensor,
        target: Tensor,
        noun_mask: Tensor,
    ) -> Encoded:
        """Embed a batch as the data set hands it out: one row an image, one row a caption."""
        region_mask = image_region_mask(src_tokens, image_index, len(features), self.words.pad())
        word_mask = target.ne(self.words.pad()) & target.ne(self.words.eos())
        return Encoded(
            self.encode_regions(features, boxes) * region_mask[:, :, None],
            region_mask,
            self.encode_words(target, word_mask) * word_mask[:, :, None],
            word_mask,
            self.grounded(target, noun_mask) & word_mask,
        )

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        features: Tensor,
        boxes: Tensor,
        image_index: Tensor,
        prev_output_tokens: Tensor | None = None,
        target: Tensor | None = None,
        noun_mask: Tensor | None = None,
    ) -> Encoded:
        """Embed a batch; one pass of the wrapped model, so that gradients are shared between processes."""
        if target is None or noun_mask is None:
            raise GroundingError(
                f"{type(self).__name__} is a matching model and writes no captions: train it with"
                " --criterion image_text_triplet, and read its attention with --score-reference"
            )
        return self.encode(src_tokens, features, boxes, image_index, target, noun_mask)

    def max_positions(self) -> None:
        """No limit of its own."""
        return None

    def get_targets(self, sample, net_output):
        """The captions."""
        return sample["target"]
