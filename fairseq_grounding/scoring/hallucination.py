"""Objects that a caption mentions and its image lacks: what every way of judging them has in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import GroundingError
from .bootstrap import ImageRatios


class Mention(NamedTuple):
    """An object word of a caption: what was said, which object it names, and the place it was said at."""

    word: str
    object: str
    place: int


@dataclass(frozen=True)
class JudgedCaption:
    """A caption's mentions of objects, and those of them that the image lacks."""

    image: str
    text: str
    mentions: Sequence[Mention]
    hallucinated: Sequence[Mention]


def judge(image: str, text: str, mentions: Sequence[Mention], there: Mapping[str, Any] | set[str]) -> JudgedCaption:
    """Hold a caption's mentions against the objects that are there; every mention counts."""
    return JudgedCaption(image, text, mentions, [mention for mention in mentions if mention.object not in there])


def summarise(captions: Sequence[JudgedCaption], rounds: int, seed: int) -> dict[str, Any]:
    """Shares of captions and of mentions that are wrong, one caption an image.

    Returns ``caption_share`` (captions with a wrong mention over captions), ``mention_share`` (wrong mentions over
    mentions; None without any), their 95% ``intervals`` over images, the counts, ``mentions_per_caption``,
    ``per_object`` and ``per_caption``.
    """
    if not captions:
        raise GroundingError("there are no captions to score")
    ratios = ImageRatios(len(captions))
    said: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for number, caption in enumerate(captions):
        ratios.add("caption_share", number, bool(caption.hallucinated), 1)
        ratios.add("mention_share", number, len(caption.hallucinated), len(caption.mentions))
        said.update(mention.object for mention in caption.mentions)
        wrong.update(mention.object for mention in caption.hallucinated)
    names = ("caption_share", "mention_share")
    intervals = ratios.intervals(rounds, seed)
    return {
        **{name: ratios.ratio(name) for name in names},
        "intervals": {name: intervals.get(name) for name in names},
        "captions": len(captions),
        "captions_hallucinated": int(ratios.sums("caption_share")[0]),
        "mentions": sum(said.values()),
        "mentions_hallucinated": sum(wrong.values()),
        "mentions_per_caption": sum(said.values()) / len(captions),
        "bootstrap": {"rounds": rounds, "seed": seed},
        "per_object": {name: {"mentions": said[name], "hallucinated": wrong[name]} for name in sorted(said)},
        "per_caption": [
            {
                "image_id": caption.image,
                "caption": caption.text,
                "mentions": [[mention.word, mention.object] for mention in caption.mentions],
                "hallucinated": [[mention.word, mention.object] for mention in caption.hallucinated],
            }
            for caption in captions
        ],
    }
