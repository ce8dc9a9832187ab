"""Do explanations tell made-up objects from real ones: how well statistics of relevance separate the two.

After "Understanding Image Captioning Models beyond Visualizing Attention" (Sun et al., arXiv 2001.01037), which asks
this of frequent object words, in the references or not, with the mean, the positive and the absolute mean, the maximum
and quantiles of relevance, with attention and with 1 - beta. Its released code keeps a caption's highest statistic of
a right word and its lowest of a wrong one, which favours every statistic; here every mention counts as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import GroundingError
from .auc import WeightedAuc
from .bootstrap import bootstrap_intervals
from .controlled import SIDES, figure
from .explained import ExplainedWord, Explanations
from .unreferenced import UnreferencedWords

MEASURES = ("auc", "auc_same_word")


def _share_of_regions(word: ExplainedWord) -> float:
    regions = np.abs(word.regions).sum()
    whole = regions + np.abs(word.words).sum() + abs(word.start)
    return float(regions / whole) if whole > 0 else 0.0


STATISTICS: Mapping[str, Callable[[ExplainedWord], Any]] = {
    "region_sum": lambda word: word.regions.sum(),
    "region_mean": lambda word: word.regions.mean(),
    "region_max": lambda word: word.regions.max(),
    "region_positive": lambda word: word.regions.clip(min=0).sum(),
    "region_absolute": lambda word: np.abs(word.regions).sum(),
    "region_median": lambda word: np.median(word.regions),
    "region_quantile_90": lambda word: np.quantile(word.regions, 0.9),
    "region_share": _share_of_regions,
    "word_sum": lambda word: word.words.sum() + word.start,
    "sentinel": lambda word: word.sentinel,
    "explained": lambda word: word.explained,
    "attention_max": lambda word: None if word.attention is None else word.attention.max(),
    "logprob": lambda word: word.logprob,
}
"""By name, what is asked of a word's explanation. ``region_*`` are of the relevance of all regions, ``region_share`` is
theirs of what they, the earlier words and the start symbol have, without signs; ``sentinel`` is high for words that
look away, so that its AUC is one minus that of 1 - beta; ``explained`` is the number that is explained."""


def score_detection(
    explanations: Explanations, objects: UnreferencedWords, frequent: int, rounds: int, seed: int
) -> dict[str, Any]:
    """How well each of :data:`STATISTICS` separates object words that the references have from those they lack.

    Args:
        explanations: of which the first caption that the model wrote of each image is read
        objects: which words are objects, and which an image has
        frequent: only the objects that are mentioned most, so many (the paper: 20 on Flickr30k, 25 on COCO); 0: all
        rounds, seed: of the bootstrap, and of the random statistic that is the control

    Returns:
        ``figures`` (:mod:`.controlled`): ``measure`` ``auc`` (over all pairs of a word there and one that is not) and
        ``auc_same_word`` (over pairs of the same object), ``at`` the name of the statistic. Statistics that not every
        word has, or that are one number for all, are left out. ``referenced`` and ``unreferenced``: how many words;
        ``images``

    Raises:
        GroundingError: no caption that the model wrote, or none of an annotated image
    """
    explanations.check_whole_words()
    words: list[ExplainedWord] = []
    names: list[str] = []
    there: list[bool] = []
    images: list[str] = []
    captions = list(explanations.written())
    if not captions:
        raise GroundingError(
            f"{explanations.name}: holds only ground-truth captions, in which nothing is made up; explain without"
            " --given"
        )
    annotated = [caption for caption in captions if caption.image in objects.objects["images"]]
    if not annotated:
        raise GroundingError(
            f"{explanations.name}: 0 of its {len(captions)} images are annotated in objects.json; explain a split that"
            " has boxes"
        )
    for caption in annotated:
        explained = {word.place: word for word in caption.words}
        referenced = objects.referenced(caption.image)
        for mention in objects.mentions(" ".join(caption.row["tokens"])):
            if mention.place in explained:
                words.append(explained[mention.place])
                names.append(mention.object)
                there.append(mention.object in referenced)
                images.append(caption.image)
    if frequent:
        kept = {name for name, _ in Counter(names).most_common(frequent)}
        chosen = [number for number, name in enumerate(names) if name in kept]
        words, names = [words[n] for n in chosen], [names[n] for n in chosen]
        there, images = [there[n] for n in chosen], [images[n] for n in chosen]
    return {
        "figures": _figures(words, names, there, images, rounds, seed),
        "referenced": sum(there),
        "unreferenced": len(there) - sum(there),
        "images": len(annotated),
        "images_not_annotated": len(captions) - len(annotated),
    }


def _figures(
    words: Sequence[ExplainedWord],
    names: Sequence[str],
    there: Sequence[bool],
    images: Sequence[str],
    rounds: int,
    seed: int,
) -> list[dict[str, Any]]:
    numbers = {image: number for number, image in enumerate(dict.fromkeys(images))}
    own = [numbers[image] for image in images]
    scores = {}
    for name, statistic in STATISTICS.items():
        values = [statistic(word) for word in words]
        if None not in values and len(set(values)) > 1:
            scores[name] = values
    random = np.random.default_rng(seed).random(len(words))
    groups = {"auc": None, "auc_same_word": names}
    aucs = {
        (name, measure): WeightedAuc(scores[name], there, own, groups[measure])
        for name in scores
        for measure in MEASURES
    }
    controls = {measure: WeightedAuc(random, there, own, groups[measure]) for measure in MEASURES}

    def statistics(weights: np.ndarray) -> dict[Any, np.ndarray]:
        by_chance = {measure: control(weights) for measure, control in controls.items()}
        found = {}
        for (name, measure), auc in aucs.items():
            value = auc(weights)
            sides = (value, by_chance[measure], value - by_chance[measure])
            found.update({(name, measure, side): values for side, values in zip(SIDES, sides)})
        return found

    whole = statistics(np.ones((1, len(numbers))))
    intervals = bootstrap_intervals(statistics, len(numbers), rounds, seed)
    return [
        figure(
            {"measure": measure, "at": name},
            {side: _number(whole[name, measure, side][0]) for side in SIDES},
            {side: intervals.get((name, measure, side)) for side in SIDES},
            len(words),
        )
        for measure in MEASURES
        for name in scores
    ]


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
