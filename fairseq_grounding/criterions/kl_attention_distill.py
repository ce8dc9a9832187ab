"""Cross-entropy for the words, and a teacher's attention for where to look while saying them."""

import logging
import math
from dataclasses import dataclass, field
from typing import Optional, Tuple

from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from ..checkpoints import load_matching_model
from ..errors import GroundingError
from ..modules.matching import READOUTS
from ..modules.teacher import Teacher

logger = logging.getLogger(__name__)

KINDS = ("kl", "reverse-kl", "nll", "nll-all")
FLOOR = 1e-8


def attention_loss(student: Tensor, target: Tensor, mask: Tensor, kind: str = "kl") -> Tuple[Tensor, Tensor]:
    """How far a captioner's attention is from where it should look.

    Attention is floored at 1e-8 and not renormalised, as in the code behind the published numbers.

    Args:
        student: (B,T,R) the captioner's attention
        target: (B,T,R) where it should look; for ``nll-all`` 1 at each right region and 0 elsewhere
        mask: (B,T) True or 1 at the tokens that count
        kind: ``kl``: KL(target, student), what the published code computes; ``reverse-kl``: KL(student, target),
            POS-SCAN's Eq. 15 as printed; ``nll``: -log of the student's attention on the target's highest region;
            ``nll-all``: -log of its attention on every right region (Eq. 16)

    Returns:
        the sum over tokens that count, and their number (``nll-all``: over their right regions, and the number of
        those, by which the published code divides); both 0 where none counts
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it can be {', '.join(KINDS)}")
    chosen = mask.bool()
    student, target = student[chosen], target[chosen].to(student.dtype)
    if kind == "nll":
        best = student.gather(1, target.argmax(1, keepdim=True)) if len(student) else student[:, :1]
        total = -best.clamp(min=FLOOR).log().sum()
    elif kind == "nll-all":
        right = target > 0
        return -student[right].clamp(min=FLOOR).log().sum(), right.sum()
    else:
        student, target = student.clamp(min=FLOOR), target.clamp(min=FLOOR)
        ratio = target.log() - student.log()
        total = (target * ratio).sum() if kind == "kl" else -(student * ratio).sum()
    return total, chosen.sum()


@dataclass
class KlAttentionDistillConfig(FairseqDataclass):
    teacher_path: Optional[str] = field(
        default=None, metadata={"help": "checkpoint of the matching model that teaches (scan, pos_scan)"}
    )
    teacher_readout: ChoiceEnum(READOUTS) = field(  # type: ignore[valid-type]
        default="normalised",
        metadata={
            "help": "how attention is read off the teacher. normalised: softmax over regions of the"
            " word-normalised similarity, as published; similarity: softmax of temperature times cosine"
        },
    )
    attention_words: ChoiceEnum(["nouns", "all"]) = field(  # type: ignore[valid-type]
        default="nouns", metadata={"help": "at which words the teacher is followed"}
    )
    attention_loss: ChoiceEnum(["kl", "reverse-kl", "nll"]) = field(  # type: ignore[valid-type]
        default="kl",
        metadata={
            "help": "kl: KL(teacher, student), as published; reverse-kl: as printed in Eq. 15; nll: the teacher's"
            " highest region is the right one"
        },
    )
    attention_weight: float = field(default=0.1, metadata={"help": "weight of the attention loss beside cross-entropy"})
    label_smoothing: float = field(default=0.0, metadata={"help": "label smoothing of the cross-entropy"})


@register_criterion("kl_attention_distill", dataclass=KlAttentionDistillConfig)
class KlAttentionDistillCriterion(FairseqCriterion):
    """Cross-entropy plus ``attention_weight`` times :func:`attention_loss` per noun (POS-SCAN, Eqs. 14-17).

    The attention term is a mean over the nouns of the micro-batch, the cross-entropy a mean over tokens, as
    published; fairseq divides by the number of tokens, so the former is multiplied by it here.
    """

    def __init__(
        self,
        task,
        teacher_path,
        teacher_readout,
        attention_words,
        attention_loss,
        attention_weight,
        label_smoothing,
    ):
        super().__init__(task)
        self.readout = str(teacher_readout)
        self.words = str(attention_words)
        self.kind = str(attention_loss)
        self.weight = attention_weight
        self.smoothing = label_smoothing
        if not (math.isfinite(attention_weight) and attention_weight >= 0):
            raise GroundingError(f"--attention-weight {attention_weight}: give 0 or more")
        if teacher_path is None:
            raise GroundingError("--criterion kl_attention_distill needs a teacher: give --teacher-path CHECKPOINT")
        model = load_matching_model(teacher_path, "--teacher-path")
        name = f"--teacher-path {teacher_path}"
        self.teacher = Teacher(model, task.target_dictionary, task.feature_size, name)
        if self.words == "all" and model.nouns_only:
            raise GroundingError(f"{name}: attends at nouns only; --attention-words all needs a teacher on all words")
        logger.info(f"{name}: {type(model).__name__}, knows {self.teacher.coverage:.2%} of the training tokens")

    def forward(self, model, sample, reduce=True):
        """Return loss, number of tokens, and what to log."""
        logits, extra = model(**sample["net_input"])
        attention = (extra or {}).get("attn", [None])[0]
        if attention is None:
            raise GroundingError("--criterion kl_attention_distill: this architecture has no attention to teach")
        lprobs = model.get_normalized_probs((logits, extra), log_probs=True).view(-1, logits.shape[-1])
        smoothed, nll = label_smoothed_nll_loss(
            lprobs, sample["target"].view(-1, 1), self.smoothing, ignore_index=self.padding_idx, reduce=True
        )
        mask = self._mask(sample)
        attention_sum, count = attention_loss(
            attention.float(), self.teacher.attention(sample, self.readout), mask, self.kind
        )
        tokens = sample["ntokens"]
        loss = smoothed + self.weight * attention_sum / count.clamp(min=1) * tokens
        logged = {
            "loss": loss.detach(),
            "nll_loss": nll.detach(),
            "attention_loss": attention_sum.detach(),
            "attention_words": count.detach(),
            "ntokens": tokens,
            "nsentences": sample["nsentences"],
            "sample_size": tokens,
        }
        return loss, tokens, logged

    def _mask(self, sample) -> Tensor:
        if self.words == "nouns":
            return sample["noun_mask"].bool()
        target = sample["target"]
        return target.ne(self.padding_idx) & target.ne(self.task.target_dictionary.eos())

    @staticmethod
    def reduce_metrics(logging_outputs):
        """Loss and nll_loss in bits a token as fairseq logs them, attention_loss in nats a noun."""

        def total(name):
            return float(sum(log.get(name, 0) for log in logging_outputs))

        tokens, words = total("ntokens"), total("attention_words")
        metrics.log_scalar("loss", total("loss") / tokens / math.log(2), tokens, round=3)
        metrics.log_scalar("nll_loss", total("nll_loss") / tokens / math.log(2), tokens, round=3)
        metrics.log_scalar("attention_loss", total("attention_loss") / max(1.0, words), words, round=4)
        metrics.log_derived("ppl", lambda meters: 2.0 ** meters["nll_loss"].avg if "nll_loss" in meters else 0.0)

    @staticmethod
    def logging_outputs_can_be_summed():
        """True: every value is a sum."""
        return True
