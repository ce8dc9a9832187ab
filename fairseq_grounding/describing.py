"""Captions for single regions of an image, by any captioner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor
from tqdm import tqdm

from .data.pieces import MARK, PieceReader
from .data.regions import RegionStore
from .dump import DECIMALS
from .errors import GroundingError
from .modules.regions import whole_image
from .scoring.nms import suppress

RANKS = ("detector", "caption")
DUPLICATES = ("same-caption", "any-caption")
FORMS = ("auto", "snippet", "image")


class Item(NamedTuple):
    """One region as the captioner gets it: features (1 or 2,D), boxes (1 or 2,4) relative to the image."""

    image: int
    region: int
    features: Tensor
    boxes: Tensor


class RegionDescriber:
    """Writes a caption for each region of an image by beam search.

    Args:
        model: a captioner of this plugin, on the device that it shall work on
        beam: width of the search
        max_length: tokens a caption, at most: words, or for a model that writes pieces, pieces
        batch_size: regions decoded at once, of one or several images
        form: what the model gets of a region. ``snippet``: the region and, as a second one, the whole image, which
            is how ``align --export-snippets`` writes its images; ``image``: the region alone, as if its box were
            the whole image; ``auto``: snippets where the model was trained with ``--image-vector region``
    """

    def __init__(
        self, model: Any, *, beam: int = 5, max_length: int = 20, batch_size: int = 64, form: str = "auto"
    ) -> None:
        self.model = model
        self.dictionary = model.words
        spells = any(symbol.startswith(MARK) for symbol in self.dictionary.symbols)
        self.reader = PieceReader(self.dictionary, self.dictionary) if spells else None
        self.batch_size = batch_size
        self.as_snippets = form == "snippet" or (form == "auto" and getattr(model, "describes_region", False))
        self.device = next(model.parameters()).device
        self.generator = SequenceGenerator([model], self.dictionary, beam_size=beam, max_len_a=0, max_len_b=max_length)

    def describe(
        self,
        store: RegionStore,
        images: Sequence[int],
        *,
        top: int | None = None,
        rank: str = "caption",
        nms: float = 0.7,
        duplicates: str = "same-caption",
    ) -> Iterator[dict[str, Any]]:
        """Describe images of *store* one after another, holding one batch in memory.

        Args:
            store: with boxes
            images: their numbers in the store
            top: so many regions an image, at most. With *rank* ``detector`` these alone are captioned, and
                near-duplicates among them go afterwards; with ``caption`` they are the best of what is left
            rank: what makes a region the better one: ``detector``, its confidence, or ``caption``, the mean log
                probability of its words
            nms: a region goes where its intersection over union with a better one is above this
            duplicates: ``same-caption``: but only where it says the same; ``any-caption``: whatever it says

        Yields:
            ``{"image_id", "regions": [{"region", "box", "text", "score"}]}``, the best region first: its number in
            the store, its box in pixels, its words joined by spaces, and the mean natural logarithm of the
            probability of its words and the end symbol

        Raises:
            GroundingError: the store has no boxes, no confidences to rank by, or features of another width
        """
        if not store.has_boxes:
            raise GroundingError(
                f"{store.path}: has no boxes, so there are no regions to describe; import them with boxes"
            )
        if rank == "detector" and not store.has_scores:
            raise GroundingError(f"--rank detector: {store.path} has no confidences; leave it out, or --rank caption")
        if store.feature_size != self.model.feature_size:
            raise GroundingError(
                f"{store.path}: has features of width {store.feature_size}, the model reads {self.model.feature_size};"
                " give the store that it was trained on"
            )
        described = self._decoded(self._items(store, images, top if rank == "detector" else None))
        bar = tqdm(total=len(images), desc="describing", unit="image", disable=None)
        for image, found in groupby(described, key=lambda item: item[0]):
            yield self._row(store, image, list(found), top, rank, nms, duplicates)
            bar.update()
        bar.close()

    def _items(self, store: RegionStore, images: Iterable[int], top: int | None) -> Iterator[Item]:
        for image in images:
            features = torch.from_numpy(store.features(image))
            boxes = torch.from_numpy(store.boxes(image) / np.tile(store.image_sizes[image], 2).astype(np.float32))
            regions = range(len(features))
            if top is not None:
                scores = store.scores(image)
                assert scores is not None
                regions = np.argsort(-scores, kind="stable")[:top].tolist()
            full = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
            if self.as_snippets:
                whole = whole_image(features[None], boxes[None], torch.ones(1, len(features), dtype=torch.bool))
            for region in regions:
                if self.as_snippets:
                    own = torch.cat([features[region, None], whole]), torch.cat([boxes[region, None], full])
                else:
                    own = features[region, None], full
                yield Item(image, region, *own)

    def _decoded(self, items: Iterator[Item]) -> Iterator[tuple[int, int, str, float]]:
        """Image, region, caption and score of each item."""
        while batch := list(islice(items, self.batch_size)):
            rows = len(batch[0].features)
            net_input = {
                "src_tokens": torch.full((len(batch), rows), self.dictionary.unk()),
                "src_lengths": torch.full((len(batch),), rows),
                "features": torch.stack([item.features for item in batch]),
                "boxes": torch.stack([item.boxes for item in batch]),
                "image_index": torch.arange(len(batch)),
            }
            net_input = {name: tensor.to(self.device) for name, tensor in net_input.items()}
            with torch.no_grad():
                hypotheses = self.generator.generate([self.model], {"net_input": net_input})
            for item, (best, *_) in zip(batch, hypotheses):
                yield item.image, item.region, self._text(best["tokens"]), float(best["score"])

    def _text(self, tokens: Tensor) -> str:
        spoken = [token for token in tokens.tolist() if token != self.dictionary.eos()]
        words = [self.dictionary[token] for token in spoken] if self.reader is None else self.reader.strings(spoken)
        return " ".join(words)

    @staticmethod
    def _row(
        store: RegionStore,
        image: int,
        found: list[tuple[int, int, str, float]],
        top: int | None,
        rank: str,
        nms: float,
        duplicates: str,
    ) -> dict[str, Any]:
        regions = [region for _, region, _, _ in found]
        texts = [text for _, _, text, _ in found]
        scores = [score for _, _, _, score in found]
        boxes = store.boxes(image)[regions]
        confidences = store.scores(image) if rank == "detector" else None
        ranks = scores if confidences is None else confidences[regions].tolist()
        kept = suppress(boxes, ranks, nms, texts if duplicates == "same-caption" else None)
        return {
            "image_id": store.image_ids[image],
            "regions": [
                {
                    "region": regions[n],
                    "box": [round(side, DECIMALS) for side in boxes[n].tolist()],
                    "text": texts[n],
                    "score": round(scores[n], DECIMALS),
                }
                for n in kept[:top]
            ],
        }
