"""Captions with the regions of their images, as fairseq's iterators want them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset, data_utils

from ..errors import GroundingError
from .pieces import PieceReader
from .prepared import PreparedSplit
from .regions import RegionStore

ITEMS = ("caption", "image", "group")


class GroundedCaptionDataset(FairseqDataset):
    """One split, in items of one caption, one image without its captions, or one image with all of them.

    Items are numbers; the collater reads the files, so that an image's features are read once a batch however
    many of its captions are in it.

    Args:
        split: the captions
        store: the regions
        dictionary: the captions' dictionary, of words or of pieces
        items: ``caption``, ``image`` (for generation) or ``group``
        max_regions: at most so many regions an image, the first of the store
        max_tokens: captions are cut to so many tokens, the last of them the end symbol
        shuffle: another order each epoch (training)
        seed: of the shuffling
        reader: hand captions out in subword pieces, and their words beside them, as it reads them

    Raises:
        GroundingError: an image of the split is not in the store
    """

    def __init__(
        self,
        split: PreparedSplit,
        store: RegionStore,
        dictionary: Dictionary,
        items: str = "caption",
        max_regions: int = 100,
        max_tokens: int = 50,
        shuffle: bool = False,
        seed: int = 1,
        reader: PieceReader | None = None,
    ):
        if items not in ITEMS:
            raise ValueError(f"items is {items!r}; it can be {', '.join(ITEMS)}")
        if len(split) == 0:
            raise GroundingError(f"{split.folder}: the split {split.name!r} holds no caption")
        self.split = split
        self.store = store
        self.dictionary = dictionary
        self.items = items
        self.max_regions = max_regions
        self.max_tokens = max_tokens
        self.shuffle = shuffle
        self.seed = seed
        self.reader = reader
        self.epoch = 1
        self.image_ids = list(dict.fromkeys(split.image_ids))
        number = {image_id: n for n, image_id in enumerate(self.image_ids)}
        # from caption to image of the split, and from there to image of the store
        self.image_of_caption = np.array([number[image_id] for image_id in split.image_ids])
        self.stored = np.array([store.index(image_id) for image_id in self.image_ids])
        counts = np.bincount(self.image_of_caption, minlength=len(self.image_ids))
        self.first_caption = np.concatenate([[0], np.cumsum(counts)])
        self.caption_sizes = np.minimum(np.asarray(self._tokens.sizes, dtype=np.int64), max_tokens)
        self.region_counts = np.minimum(store.counts[self.stored], max_regions)
        if items == "caption":
            self.token_counts = self.caption_sizes
            self.item_regions = self.region_counts[self.image_of_caption]
        elif items == "group":
            self.token_counts = np.add.reduceat(self.caption_sizes, self.first_caption[:-1])
            self.item_regions = self.region_counts
        else:
            self.token_counts = np.maximum.reduceat(self.caption_sizes, self.first_caption[:-1])
            self.item_regions = self.region_counts

    @property
    def _tokens(self) -> Any:
        return self.split.tokens if self.reader is None else self.split.pieces

    def __getitem__(self, index: int) -> int:
        return int(index)

    def __len__(self) -> int:
        return len(self.split) if self.items == "caption" else len(self.image_ids)

    def captions_of(self, item: int) -> Sequence[int]:
        """The caption numbers that an item brings into its batch; for an image without captions its first."""
        if self.items == "caption":
            return (item,)
        if self.items == "image":
            return (int(self.first_caption[item]),)
        return self.captions_of_image(item)

    def captions_of_image(self, image: int) -> range:
        """The numbers of an image's captions, whatever the items are."""
        return range(int(self.first_caption[image]), int(self.first_caption[image + 1]))

    def references(self, image: int) -> list[list[int]]:
        """The whole captions of an image, as word ids with the end symbol."""
        return [self.split.tokens[caption].tolist() for caption in self.captions_of_image(image)]

    def collater(self, samples: list[int]) -> dict[str, Any]:
        """A batch: what DESIGN calls ``net_input``, and beside it targets, noun masks and ids.

        Returns:
            ``id`` (B,), ``net_input`` with ``src_tokens`` (B,R), ``src_lengths`` (B,), ``features`` (I,R,D),
            ``boxes`` (I,R,4) relative to the image, ``image_index`` (B,) and ``prev_output_tokens`` (B,T);
            ``target`` (B,T) or None for images without captions, ``noun_mask`` (B,T) uint8, ``caption`` (B,)
            the caption numbers, ``ntokens``, ``nsentences``, ``split``; nothing for an empty list. Where tokens are
            pieces, ``noun_mask`` is 1 at each piece of a noun, and ``words`` holds what a teacher reads: ``target``
            (B,W), ``noun_mask`` (B,W) and ``word_index`` (B,T), the word of each piece, -1 where there is none
        """
        if not samples:
            return {}
        captions = [caption for item in samples for caption in self.captions_of(item)]
        images, image_index = np.unique(self.image_of_caption[captions], return_inverse=True)
        features, boxes = self._regions(images)
        counts = torch.from_numpy(self.region_counts[images])[torch.from_numpy(image_index)]
        pad, unk, eos = self.dictionary.pad(), self.dictionary.unk(), self.dictionary.eos()
        real = torch.arange(features.shape[1])[None, :] < counts[:, None]
        net_input = {
            "src_tokens": torch.full(real.shape, pad).masked_fill(real, unk),
            "src_lengths": counts,
            "features": features,
            "boxes": boxes,
            "image_index": torch.from_numpy(image_index),
        }
        batch = {
            "id": torch.tensor(samples if self.items == "image" else captions),
            "caption": torch.tensor(captions),
            "net_input": net_input,
            "nsentences": len(captions),
            "split": self.split.name,
        }
        if self.items == "image":
            return {**batch, "target": None, "ntokens": len(captions)}
        target = [self._cut(self._tokens[caption]) for caption in captions]
        net_input["prev_output_tokens"] = data_utils.collate_tokens(
            target, pad, eos, left_pad=False, move_eos_to_beginning=True
        )
        padded = data_utils.collate_tokens(target, pad)
        batch["target"] = padded
        if self.reader is None:
            nouns = [self._cut(self.split.nouns[caption], end=0) for caption in captions]
            batch["noun_mask"] = data_utils.collate_tokens(nouns, 0).to(torch.uint8)
        else:
            batch["words"] = words = self._words(captions, self.reader.word_index(padded))
            places = words["word_index"]
            batch["noun_mask"] = words["noun_mask"].gather(1, places.clamp(min=0)).masked_fill(places < 0, 0)
        batch["ntokens"] = sum(len(tokens) for tokens in target)
        return batch

    def _words(self, captions: list[int], word_index: torch.Tensor) -> dict[str, torch.Tensor]:
        """Of each caption the words that have pieces in the batch: those before a caption was cut."""
        ends = word_index.max(1).values + 1
        targets, nouns = [], []
        for caption, end in zip(captions, ends.tolist()):
            last = self.split.tokens[caption].new_tensor([self.dictionary.eos()])
            targets.append(torch.cat([self.split.tokens[caption][:end], last]).long())
            nouns.append(torch.cat([self.split.nouns[caption][:end], torch.zeros_like(last)]))
        return {
            "target": data_utils.collate_tokens(targets, self.dictionary.pad()),
            "noun_mask": data_utils.collate_tokens(nouns, 0).to(torch.uint8),
            "word_index": word_index,
        }

    def _cut(self, tokens: torch.Tensor, end: int | None = None) -> torch.Tensor:
        if len(tokens) <= self.max_tokens:
            return tokens.long()
        cut = tokens[: self.max_tokens].clone().long()
        cut[-1] = self.dictionary.eos() if end is None else end
        return cut

    def _regions(self, images: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        most = int(self.region_counts[images].max())
        features = torch.zeros(len(images), most, self.store.feature_size)
        boxes = torch.zeros(len(images), most, 4)
        for row, image in enumerate(images):
            stored, count = int(self.stored[image]), int(self.region_counts[image])
            size = np.tile(self.store.image_sizes[stored], 2).astype(np.float32)
            features[row, :count] = torch.from_numpy(self.store.features(stored, limit=self.max_regions))
            boxes[row, :count] = torch.from_numpy(self.store.boxes(stored, limit=self.max_regions) / size)
        return features, boxes

    def num_tokens(self, index: int) -> int:
        return int(self.token_counts[index])

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        return self.token_counts[indices]

    def size(self, index: int) -> tuple[int, int]:
        return int(self.item_regions[index]), int(self.caption_sizes[list(self.captions_of(index))].max())

    def filter_indices_by_size(self, indices, max_sizes):
        """Nothing is too large: regions and captions were cut."""
        return indices, []

    def batch_by_size(self, indices, max_tokens=None, max_sentences=None, required_batch_size_multiple=1):
        """fairseq's batches; it loses the last item of some splits when it rounds to a multiple, so it never does."""
        return super().batch_by_size(indices, max_tokens, max_sentences, 1)

    def ordered_indices(self) -> np.ndarray:
        """A new order each epoch in training; else the file's, in which an image's captions are neighbours."""
        if not self.shuffle:
            return np.arange(len(self))
        return np.random.default_rng([self.seed, self.epoch]).permutation(len(self))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """No where it shuffles: fairseq would keep the batches, and with them the negatives, of the first epoch."""
        return not self.shuffle
