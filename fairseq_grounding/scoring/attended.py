"""What a grounding dump holds for scoring: attended boxes by word."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..dump import read_dump
from ..errors import GroundingError
from .iou import Box


def betas_of(path: str | os.PathLike[str]) -> list[float | None]:
    """The betas of a dump that ``align`` wrote, which has a row for each of them and each caption; else ``[None]``."""
    betas: list[float | None] = []
    first = None
    for row in read_dump(path):
        caption = row["image_id"], row["caption_index"]
        first = first or caption
        if caption != first or row.get("beta") in betas:
            break
        betas.append(row.get("beta"))
    return betas


class Attended:
    """The attended boxes of a dump, given by its path or as rows, on the images that are annotated.

    Attributes:
        generated: by image, the words and their attended boxes of the first caption that the model wrote
        references: by image and number of the caption, the attended boxes of a ground-truth caption
        attention: with *keep_attention*, the same for the weights (regions,) of each word

    With *beta*, only its rows of a dump that has several (:func:`betas_of`) are read.

    Raises :class:`GroundingError` where there is nothing to score, or not by whole words.
    """

    def __init__(
        self,
        dump: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
        objects: Mapping[str, Any],
        keep_attention: bool = False,
        beta: float | None = None,
    ) -> None:
        rows: Iterable[Mapping[str, Any]]
        if isinstance(dump, (str, os.PathLike)):
            self.name, rows = str(dump), read_dump(dump)
        else:
            self.name, rows = "dump", dump
        self.generated: dict[str, tuple[list[str], list[Box | None]]] = {}
        self.references: dict[str, dict[int, list[Box | None]]] = {}
        self.attention: dict[str, dict[int, list[np.ndarray | None]]] = {}
        self.rows_ignored = 0
        self._keep_attention = keep_attention
        seen: set[str] = set()
        attends = False
        for row in rows:
            if beta is not None and row.get("beta") != beta:
                continue
            image = row["image_id"]
            seen.add(image)
            boxes = [step["box"] for step in row["steps"]]
            attends = attends or any(box is not None for box in boxes)
            if image in objects["images"]:
                self._keep(row, boxes, len(objects["images"][image]))
        annotated = {image for image in seen if image in objects["images"]}
        self.not_annotated = len(seen) - len(annotated)
        if not seen:
            raise GroundingError(f"{self.name}: has no rows")
        if not annotated:
            raise GroundingError(
                f"{self.name}: 0 of its {len(seen)} images are annotated in objects.json; "
                "score a split that has boxes, with the prepared folder that the model was run on"
            )
        if not attends:
            raise GroundingError(
                f"{self.name}: no step has a box: the model gives no attention, or its region store has no boxes"
            )

    def _keep(self, row: Mapping[str, Any], boxes: list[Box | None], captions: int) -> None:
        image, number, words = row["image_id"], row["caption_index"], row["text"].split()
        if len(boxes) > len(words):
            raise GroundingError(
                f"{self.name}: image {image}: {len(boxes)} tokens for {len(words)} words; "
                "grounding is scored word by word, dump whole words"
            )
        if not row.get("reference", False):
            if image in self.generated:
                self.rows_ignored += 1
            else:
                self.generated[image] = words, boxes
            return
        if number is None or number >= captions:
            raise GroundingError(
                f"{self.name}: image {image}: the ground-truth caption_index is {number}, and "
                f"objects.json has {captions} captions of it; dump from the same prepared folder"
            )
        if number in self.references.setdefault(image, {}):
            self.rows_ignored += 1
            return
        self.references[image][number] = boxes
        if self._keep_attention:
            self.attention.setdefault(image, {})[number] = [
                None if step["attention"] is None else np.array(step["attention"], np.float64) for step in row["steps"]
            ]

    def left_out(self) -> dict[str, int]:
        """How much of the dump is not scored."""
        return {"images_not_annotated": self.not_annotated, "rows_ignored": self.rows_ignored}

    def expected(self, images: Iterable[str], objects: Mapping[str, Any]) -> list[str]:
        """The annotated images of all splits that *images* are in."""
        splits = {objects["splits"][image] for image in images}
        return [image for image in objects["images"] if objects["splits"][image] in splits]

    def said(self, objects: Mapping[str, Any], never: Iterable[str] = ()) -> dict[str, list[tuple[str, Box | None]]]:
        """The (class, attended box) of each object word that the model wrote, by image, in order; none of *never*."""
        classes, lemmas = set(objects["classes"]).difference(never), objects["lemmas"]
        return {
            image: [
                (lemmas.get(word, word), box) for word, box in zip(words, boxes) if lemmas.get(word, word) in classes
            ]
            for image, (words, boxes) in self.generated.items()
        }
