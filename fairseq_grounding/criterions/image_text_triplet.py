"""The two-way ranking loss of image-text matching, with hardest or all negatives of the batch."""

import logging
from dataclasses import dataclass, field
from typing import Optional

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from ..errors import GroundingError
from ..modules.matching import MatchingModel
from ..modules.wrapped import unwrap

logger = logging.getLogger(__name__)

# a run has collapsed when so many updates in a row sit at the loss of a model that gives every pair one score
COLLAPSED_UPDATES = 100


def triplet_loss(
    scores: Tensor, margin: float = 0.2, negatives: str = "hardest", image_index: Optional[Tensor] = None
) -> Tensor:
    """Sum over the batch of both hinges (Lee et al., ECCV 2018, Eq. 14; with all negatives Eq. 13).

    Args:
        scores: (B,B), pair i on the diagonal, rows images and columns captions
        margin: by how much a pair must beat its negatives
        negatives: ``hardest`` in the batch, or ``all``
        image_index: (B,) the image of each pair; another caption of the same image is never a negative

    Returns:
        scalar
    """
    if negatives not in ("hardest", "all"):
        raise ValueError(f"negatives is {negatives!r}; it can be hardest, all")
    positive = scores.diagonal()
    if image_index is None:
        image_index = torch.arange(len(scores), device=scores.device)
    same = image_index[:, None] == image_index[None, :]
    other_captions = (margin + scores - positive[:, None]).clamp(min=0).masked_fill(same, 0)
    other_images = (margin + scores - positive[None, :]).clamp(min=0).masked_fill(same, 0)
    if negatives == "hardest":
        return other_captions.amax(1).sum() + other_images.amax(0).sum()
    return other_captions.sum() + other_images.sum()


@dataclass
class ImageTextTripletConfig(FairseqDataclass):
    margin: float = field(default=0.2, metadata={"help": "by how much a pair must beat its negatives"})
    negatives: ChoiceEnum(["hardest", "all"]) = field(  # type: ignore[valid-type]
        default="hardest", metadata={"help": "which negatives of the batch count"}
    )
    hardest_from_epoch: int = field(
        default=2,
        metadata={
            "help": "with --negatives hardest: the epoch from which they are used; all negatives before it. 1 is"
            " the published run, which can collapse from a cold start"
        },
    )


@register_criterion("image_text_triplet", dataclass=ImageTextTripletConfig)
class ImageTextTripletCriterion(FairseqCriterion):
    """:func:`triplet_loss` on a matching model. The loss is a sum and ``sample_size`` 1, as published, so that
    learning rate and ``--clip-norm`` mean what they meant there."""

    def __init__(self, task, margin, negatives, hardest_from_epoch):
        super().__init__(task)
        if not margin > 0:
            raise GroundingError(f"--margin {margin}: give more than 0")
        self.margin = margin
        self.negatives = str(negatives)
        self.hardest_from_epoch = hardest_from_epoch
        self._flat_updates = 0

    def forward(self, model, sample, reduce=True):
        """Return the loss, 1, and what to log."""
        matcher = unwrap(model)
        if not isinstance(matcher, MatchingModel):
            raise GroundingError(
                "--criterion image_text_triplet trains a matching model (scan, pos_scan, dvsa);"
                f" {type(matcher).__name__} is none: use cross_entropy or kl_attention_distill"
            )
        encoded = model(**sample["net_input"], target=sample["target"], noun_mask=sample["noun_mask"])
        image_index = sample["net_input"]["image_index"]
        scores = matcher.scores(encoded)[image_index]
        # validation always sees the final loss, so that its epochs compare
        warm = not model.training or self.task.epoch >= self.hardest_from_epoch
        hardest = self.negatives == "hardest" and warm
        loss = triplet_loss(scores, self.margin, "hardest" if hardest else "all", image_index)
        if model.training and hardest:
            self._watch(float(loss.detach()), len(scores))
        logged = {
            "loss": loss.detach(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": 1,
            "positive": scores.diagonal().sum().detach(),
        }
        return loss, 1, logged

    def _watch(self, loss: float, pairs: int) -> None:
        flat = 2 * self.margin * pairs
        self._flat_updates = self._flat_updates + 1 if abs(loss - flat) < 0.01 * flat else 0
        if self._flat_updates == COLLAPSED_UPDATES:
            logger.warning(
                f"the matching model has collapsed: for {COLLAPSED_UPDATES} updates the loss stays at 2 x margin x"
                " pairs, which is what one score for every pair gives. Start again with a larger"
                " --hardest-from-epoch (all negatives until then) or a smaller --lr"
            )

    @staticmethod
    def reduce_metrics(logging_outputs):
        """Loss and matching score, each a mean over pairs."""
        pairs = sum(log["nsentences"] for log in logging_outputs)
        metrics.log_scalar("loss", float(sum(log["loss"] for log in logging_outputs)) / pairs, pairs, round=4)
        positive = float(sum(log["positive"] for log in logging_outputs)) / pairs
        metrics.log_scalar("positive_score", positive, pairs, round=4)

    @staticmethod
    def logging_outputs_can_be_summed():
        """True: every value is a sum."""
        return True
