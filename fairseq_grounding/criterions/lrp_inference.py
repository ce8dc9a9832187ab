"""Training by explanations: words are also said from a context, or with logits, that relevance re-weighted."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from torch import Tensor
from torch.nn import functional as F

from ..data.pieces import MARK
from ..data.text_lines import read_lines
from ..errors import GroundingError
from ..explain.architectures import Architecture, description_of, model_name
from ..explain.inference import STATISTICS, context_weights, logit_weights
from ..modules.wrapped import unwrap
from .scst_cider_scan import ScstCiderScanConfig, ScstCiderScanCriterion

REWEIGHT = ("context", "logits")
STOP_WORDS = Path(__file__).with_name("stop_words.txt")


@dataclass
class LrpInferenceConfig(ScstCiderScanConfig):
    reweight: ChoiceEnum(REWEIGHT) = field(  # type: ignore[valid-type]
        default="context",
        metadata={
            "help": "what relevance re-weights. context: the parts of the context that the likeliest word is said from;"
            " logits: that word's logit, by the relevance of regions"
        },
    )
    inference_weight: float = field(
        default=1.0,
        metadata={
            "help": "weight of the loss of re-weighted words beside that of plain ones, which has 1 (0: plain"
            " fine-tuning); with --self-critical 1 or 0: captions are drawn from re-weighted words, or not"
        },
    )
    relevance_statistic: ChoiceEnum(STATISTICS) = field(  # type: ignore[valid-type]
        default="mean",
        metadata={"help": "of --reweight logits: what is taken over regions, of relevance divided by its largest size"},
    )
    relevance_epsilon: float = field(default=0.01, metadata={"help": "epsilon of layer-wise relevance propagation"})
    stop_words: Optional[str] = field(
        default=None,
        metadata={"help": "file of words that are not re-weighted, one a line (default: a list of English ones)"},
    )
    self_critical: bool = field(
        default=False,
        metadata={"help": "reward drawn captions as scst_cider_scan does, with its flags, in place of cross-entropy"},
    )


@register_criterion("lrp_inference", dataclass=LrpInferenceConfig)
class LrpInferenceCriterion(FairseqCriterion):
    """CE(y) + ``inference_weight`` CE(y'), both summed over tokens (Sun et al., arXiv 2001.01037, LRP-inference).

    y' is said after re-weighting by the relevance of the word that y makes likeliest, stop words and special symbols
    excepted. No gradient goes through weights: the published code computes them without. ``context`` is its PyTorch
    form, every part of the context times 1 + R/max|R|; parts are the two that the output adds up, in up_down, which is
    not in the paper, attended regions and attention state, the language LSTM's own past being left alone. ``logits`` is
    its Keras form, the likeliest word's logit times 1 + s, with s a statistic of regions' relevance. Validation logs
    the plain cross-entropy, with ``--self-critical`` minus the mean reward.
    """

    def __init__(self, cfg: LrpInferenceConfig, task):
        super().__init__(task)
        _check(cfg)
        self.reweight, self.weight = str(cfg.reweight), cfg.inference_weight
        self.statistic, self.epsilon = str(cfg.relevance_statistic), cfg.relevance_epsilon
        self.silent = silent_words(task.target_dictionary, cfg.stop_words)
        self.scst = ScstCiderScanCriterion(cfg, task) if cfg.self_critical else None

    def forward(self, model, sample, reduce=True):
        """Return loss, number of tokens (``--self-critical``: of drawn ones), and what to log."""
        captioner: Any = unwrap(model)
        weighs = model.training and self.weight > 0
        if weighs:
            self._check_model(captioner)
        if self.scst is not None:
            if not weighs:
                return self.scst(model, sample)
            with captioner.decoder.weighing(lambda parts, carried: self._weigh(captioner, parts, carried)):
                return self.scst(model, sample)
        tokens = sample["ntokens"]
        if weighs and self.reweight == "context":
            with captioner.decoder.weighing(lambda parts, carried: self._weigh(captioner, parts, carried)):
                weighted, extra = model(**sample["net_input"])
            logits = extra["plain"][0]
        else:
            logits, _ = model(**sample["net_input"])
            if weighs:
                words, weights = logit_weights(captioner, sample, self.silent, self.statistic, self.epsilon)
                own = logits.gather(2, words[:, :, None])
                weighted = logits.scatter(2, words[:, :, None], own * weights[:, :, None].to(own.dtype))
        nll = self._cross_entropy(model, logits, sample)
        loss = nll
        logged = {
            "nll_loss": nll.detach(),
            "ntokens": tokens,
            "nsentences": sample["nsentences"],
            "sample_size": tokens,
        }
        if weighs:
            inference = self._cross_entropy(model, weighted, sample)
            loss = nll + self.weight * inference
            logged["inference_loss"] = inference.detach()
        logged["loss"] = loss.detach()
        return loss, tokens, logged

    def _cross_entropy(self, model, logits: Tensor, sample) -> Tensor:
        lprobs = model.get_normalized_probs((logits, None), log_probs=True).view(-1, logits.shape[-1])
        return F.nll_loss(lprobs, sample["target"].view(-1), ignore_index=self.padding_idx, reduction="sum")

    def _weigh(self, captioner, parts, carried):
        weights = context_weights(captioner, parts, carried, self.silent, self.epsilon)
        return tuple(part * weight for part, weight in zip(parts, weights))

    def _check_model(self, captioner) -> None:
        try:
            description = description_of(captioner)
        except GroundingError:
            raise GroundingError(
                f"--criterion lrp_inference: there are no relevance rules for {model_name(captioner)}; train a"
                " captioner that `fairseq-grounding explain --method lrp` explains"
            ) from None
        if self.reweight == "context" and type(description).say is Architecture.say:
            raise GroundingError(
                f"--reweight context: {model_name(captioner)} has no context to re-weight; use --reweight logits"
            )
        sampling = getattr(captioner.decoder, "sampling", None)
        if self.reweight == "logits" and sampling is not None and sampling.increase > 0:
            raise GroundingError(
                f"--scheduled-sampling-increase {sampling.increase}: --reweight logits explains the given captions;"
                " leave it out, or use --reweight context"
            )

    @staticmethod
    def reduce_metrics(logging_outputs):
        """Losses in bits a token, as fairseq's cross-entropy; with ``--self-critical`` as ``scst_cider_scan``."""
        if any("reward" in log for log in logging_outputs):
            ScstCiderScanCriterion.reduce_metrics(logging_outputs)
            return
        tokens = max(1.0, float(sum(log.get("ntokens", 0) for log in logging_outputs)))
        for name in ("loss", "nll_loss", "inference_loss"):
            if any(name in log for log in logging_outputs):
                total = float(sum(log.get(name, 0) for log in logging_outputs))
                metrics.log_scalar(name, total / tokens / math.log(2), tokens, round=3)
        metrics.log_derived("ppl", lambda meters: 2.0 ** meters["nll_loss"].avg if "nll_loss" in meters else 0.0)

    @staticmethod
    def logging_outputs_can_be_summed():
        """True: every value is a sum."""
        return True


def silent_words(dictionary, path: Optional[str]) -> Tensor:
    """(V,) True = special symbols, and the stop words of a file (None: the package's own), also where a word is one
    piece."""
    lines = read_lines(STOP_WORDS if path is None else path)
    stop = {line.strip().lower() for _, line in lines} - {""}
    if not stop:
        raise GroundingError(f"--stop-words {path}: holds no words; give one a line")
    marked = any(symbol.startswith(MARK) for symbol in dictionary.symbols)
    stop = {MARK + word for word in stop} if marked else stop
    silent = [number < dictionary.nspecial or symbol in stop for number, symbol in enumerate(dictionary.symbols)]
    return torch.tensor(silent)


def _check(cfg: LrpInferenceConfig) -> None:
    if not (math.isfinite(cfg.inference_weight) and cfg.inference_weight >= 0):
        raise GroundingError(f"--inference-weight {cfg.inference_weight}: give 0 or more")
    if not (math.isfinite(cfg.relevance_epsilon) and cfg.relevance_epsilon >= 0):
        raise GroundingError(f"--relevance-epsilon {cfg.relevance_epsilon}: give 0 or more")
    if not cfg.self_critical:
        for name in ("reward_path", "teacher_path", "teacher_attention"):
            if getattr(cfg, name) is not None:
                raise GroundingError(f"--{name.replace('_', '-')}: needs --self-critical")
        return
    if cfg.inference_weight not in (0, 1):
        raise GroundingError(
            f"--inference-weight {cfg.inference_weight}: with --self-critical captions are drawn from re-weighted words"
            " (1) or from plain ones (0)"
        )
    if str(cfg.reweight) == "logits" and cfg.inference_weight:
        raise GroundingError(
            "--reweight logits: with --self-critical every drawn word would need all regions explained anew; use"
            " --reweight context"
        )
