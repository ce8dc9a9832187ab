"""Cross-entropy for the words, and someone else's attention for where to look while saying them."""

import math
from dataclasses import dataclass, field

from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.logging import metrics

from ..errors import GroundingError
from .attention_loss import KINDS, attention_loss
from .attention_supervision import AttentionSupervision, AttentionSupervisionConfig

__all__ = ["KINDS", "KlAttentionDistillConfig", "KlAttentionDistillCriterion", "attention_loss"]


@dataclass
class KlAttentionDistillConfig(AttentionSupervisionConfig):
    label_smoothing: float = field(default=0.0, metadata={"help": "label smoothing of the cross-entropy"})


@register_criterion("kl_attention_distill", dataclass=KlAttentionDistillConfig)
class KlAttentionDistillCriterion(FairseqCriterion):
    """Cross-entropy plus ``attention_weight`` times :func:`attention_loss` per noun (POS-SCAN, Eqs. 14-17).

    The attention term is a mean over the nouns of the micro-batch, the cross-entropy a mean over tokens, as
    published; fairseq divides by the number of tokens, so the former is multiplied by it here.
    """

    def __init__(self, cfg: KlAttentionDistillConfig, task):
        super().__init__(task)
        if not 0 <= cfg.label_smoothing < 1:
            raise GroundingError(f"--label-smoothing {cfg.label_smoothing}: give 0 or more, and less than 1")
        self.smoothing = cfg.label_smoothing
        self.supervision = AttentionSupervision(cfg, task)

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
        attention_sum, count = self.supervision(sample, attention)
        tokens = sample["ntokens"]
        loss = smoothed + self.supervision.weight * attention_sum / count.clamp(min=1) * tokens
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
