"""Does the attention point at the right object? Scores of a grounding dump against annotated boxes.

Three protocols:

``gvd``
    The published evaluation of grounded captioning, number for number (:mod:`.gvd`): F1 of words and boxes on
    captions that the model wrote, attention accuracy on ground-truth captions, averaged over object classes.
``strict``
    The same questions as a careful person would put them (:mod:`.strict`, which compares the two).
``phrase``
    The model reads the ground-truth captions; for each boxed phrase, does it look at one of its boxes
    (:mod:`.phrases`)?
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import GroundingError
from .annotations import AnnotatedWord, Reference, load_objects
from .attended import Attended
from .bootstrap import ROUNDS
from .gvd import attention_accuracy, f1_scores, score_gvd
from .iou import hits_inclusive, hits_region
from .phrases import NounMasks, floors, score_phrases
from .strict import score_strict

if TYPE_CHECKING:
    from ..data.regions import RegionStore

__all__ = [
    "PROTOCOLS",
    "AnnotatedWord",
    "GroundingScorer",
    "Reference",
    "attention_accuracy",
    "f1_scores",
    "floors",
    "hits_inclusive",
    "hits_region",
    "load_objects",
]

PROTOCOLS = ("gvd", "strict", "phrase")


class GroundingScorer:
    """Score grounding dumps by one protocol.

    *objects* is ``objects.json`` of a prepared folder, its path or its content. Intervals of ``strict`` and
    ``phrase`` are of *bootstrap* resamples of the images, drawn with *seed*; 0 leaves them out. ``phrase``
    measures every noun where *nouns* gives the masks, and the mean attention over a phrase where *store*
    gives the boxes of all regions. Raises :class:`GroundingError` for an unknown protocol and for objects of
    another format.

    Images: a dump answers for every annotated image of the splits that its images are in; what it lacks
    counts against it and is reported as missing. Its images without annotation are left out and counted. A
    dump none of whose images is annotated is an error.
    """

    def __init__(
        self,
        objects: str | os.PathLike[str] | Mapping[str, Any],
        protocol: str = "gvd",
        *,
        nouns: NounMasks | None = None,
        store: RegionStore | None = None,
        bootstrap: int = ROUNDS,
        seed: int = 1,
    ) -> None:
        if protocol not in PROTOCOLS:
            known = ", ".join(PROTOCOLS)
            raise GroundingError(f"grounding protocol {protocol!r} is unknown; choose one of {known}")
        if bootstrap < 0 or seed < 0:
            raise GroundingError(f"--bootstrap {bootstrap} --seed {seed}: must be 0 or more")
        self.protocol = protocol
        self.objects = load_objects(objects)
        self.nouns = nouns
        self.store = store
        self.bootstrap = bootstrap
        self.seed = seed

    def score(
        self, dump: str | os.PathLike[str] | Iterable[Mapping[str, Any]], beta: float | None = None
    ) -> dict[str, Any]:
        """Score a dump, given by its path or as rows; with *beta*, only the rows that ``align`` wrote for it.

        ``phrase`` returns, of the last noun, ``accuracy``, ``interval``, ``hits``, ``phrases``,
        ``phrases_past_end`` (misses because the model was not shown the word: the caption was cut short),
        ``phrases_missing`` (misses because the caption is not in the dump); ``measures`` with the like for
        each measure; ``per_type`` (the same by entity type); ``notes`` on what was not measured; and
        ``images``, ``images_missing``, ``splits``.

        ``gvd`` returns, for captions the model wrote (of each image the dump's first), ``precision_all``,
        ``recall_all``, ``f1_all``, ``precision_loc``, ``recall_loc``, ``f1_loc``; for ground-truth captions
        ``attention_accuracy``; ``per_class``; and ``images``, ``images_missing``, ``splits`` of both kinds,
        under ``generated`` and ``reference``. A figure is None where the dump has no caption of its kind,
        and where the published tool gives NaN (F1 of precision 0 and recall 0).

        ``strict`` returns the same names, micro-averaged, and with the prefix ``macro_`` averaged over
        classes; ``intervals`` by these names; and ``counts`` of what they are made of. A figure is None
        only where the dump has no caption of its kind; 0/0 is 0.

        ``gvd`` and ``strict`` also return ``confusion``: where wrong attention went, row by row, and its sums
        ``wrong_attention``. All add
        ``images_not_annotated`` and ``rows_ignored`` (a further row of the same caption or, for captions the
        model wrote, of the same image). All figures are fractions. Raises :class:`GroundingError` when
        nothing can be scored.
        """
        keeps = self.protocol == "phrase" and self.store is not None
        content = Attended(dump, self.objects, keep_attention=keeps, beta=beta)
        if self.protocol == "phrase":
            return score_phrases(content, self.objects, self.nouns, self.store, self.bootstrap, self.seed)
        if self.protocol == "strict":
            return score_strict(content, self.objects, self.bootstrap, self.seed)
        return score_gvd(content, self.objects)
