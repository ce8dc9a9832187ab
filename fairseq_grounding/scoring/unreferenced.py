"""Object words that no reference caption of the image has: hallucination as far as Flickr30k Entities can tell.

Entities does not annotate every object of an image, so a word may be right and unreferenced. The shares are higher
than CHAIR's and must not be compared with it; they compare models on the same images.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import GroundingError
from .annotations import load_objects
from .hallucination import JudgedCaption, Mention, judge, summarise
from .synonyms import names_by_word


class UnreferencedWords:
    """Find and judge the object words (classes) of captions.

    *objects* is ``objects.json`` of a prepared folder, its path or content. A word names the class that is its lemma;
    with *synonyms* (lines of words, :func:`read_synonyms`) words of one line name the same object, so that a man who
    is a guy in the references is referenced.
    """

    def __init__(
        self, objects: str | os.PathLike[str] | Mapping[str, Any], synonyms: Sequence[Sequence[str]] = ()
    ) -> None:
        self.objects = load_objects(objects)
        self._classes = set(self.objects["classes"])
        self._names = names_by_word([list(line) for line in synonyms])

    def mentions(self, caption: str) -> list[Mention]:
        """The words of a caption whose lemma is a class."""
        lemmas = self.objects["lemmas"]
        words = [(word, lemmas.get(word, word), place) for place, word in enumerate(caption.split())]
        return [Mention(word, self._name(lemma), place) for word, lemma, place in words if lemma in self._classes]

    def referenced(self, image: str) -> set[str]:
        """What the reference captions of an image mention, with a box or without."""
        lemmas = self.objects["lemmas"]
        said = {lemmas.get(word, word) for words in self.objects["tokens"][image] for word in words}
        boxed = {entry["class"] for entries in self.objects["images"][image] for entry in entries if entry["class"]}
        return {self._name(lemma) for lemma in said | boxed}

    def _name(self, lemma: str) -> str:
        return self._names.get(lemma, lemma)

    def score(self, captions: Mapping[str, str], rounds: int, seed: int) -> dict[str, Any]:
        """Score one caption an image; images without annotation are left out and counted.

        Returns ``unreferenced_captions`` and ``unreferenced_words`` (None without an object word) beside what
        :func:`summarise` does, and ``images_not_annotated``.
        """
        judged: list[JudgedCaption] = [
            judge(image, text, self.mentions(text), self.referenced(image))
            for image, text in captions.items()
            if image in self.objects["images"]
        ]
        if not judged:
            raise GroundingError(
                f"0 of the {len(captions)} images are annotated in objects.json; score a split that has boxes"
            )
        summary = summarise(judged, rounds, seed)
        return {
            "unreferenced_captions": summary["caption_share"],
            "unreferenced_words": summary["mention_share"],
            **summary,
            "images_not_annotated": len(captions) - len(judged),
        }
