"""Self-critical sequence training: the captioner's own captions, rewarded by CIDEr-D and by a matching model."""

import logging
import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from torch import Tensor

from ..checkpoints import load_matching_model
from ..data.noun_files import noun_lookup
from ..errors import GroundingError
from ..modules.matching import MatchingModel
from ..modules.sampling import greedy_captions, log_policy, rows_of, sample_captions, shifted
from ..modules.teacher import Teacher
from ..modules.wrapped import unwrap
from ..scoring.cider import CiderD
from .attention_supervision import AttentionSupervision, AttentionSupervisionConfig, given
from .rewards import BASELINES, baselines, entropy, reward_loss, total_reward

logger = logging.getLogger(__name__)


class Rewards(NamedTuple):
    """Of N captions, each (N,): the reward, CIDEr-D, and the matching score (None without ``--reward-path``)."""

    total: Tensor
    cider: Tensor
    matching: Optional[Tensor]

    def rows(self, chosen: slice) -> "Rewards":
        """Those of some captions."""
        matching = None if self.matching is None else self.matching[chosen]
        return Rewards(self.total[chosen], self.cider[chosen], matching)


@dataclass
class ScstCiderScanConfig(AttentionSupervisionConfig):
    reward_path: Optional[str] = field(
        default=None,
        metadata={
            "help": "checkpoint of the matching model whose score is a part of the reward (scan, pos_scan, dvsa)"
        },
    )
    cider_weight: float = field(default=1.0, metadata={"help": "weight of CIDEr-D (0 to 10) in the reward"})
    scan_weight: float = field(
        default=1.0, metadata={"help": "weight of the matching score in the reward (0: none, as without --reward-path)"}
    )
    samples_per_image: int = field(default=5, metadata={"help": "captions drawn for each image and update"})
    sampling_temperature: float = field(
        default=1.0, metadata={"help": "by which logits are divided where captions are drawn, and in what is trained"}
    )
    max_sample_length: int = field(
        default=20, metadata={"help": "drawn captions are cut to so many tokens, the end symbol included"}
    )
    baseline: ChoiceEnum(BASELINES) = field(  # type: ignore[valid-type]
        default="greedy",
        metadata={
            "help": "what a drawn caption's reward is compared to. greedy: that of the image's greedy caption, as"
            " published; leave-one-out: the mean of the image's other drawn captions, which costs no decoding"
        },
    )


@register_criterion("scst_cider_scan", dataclass=ScstCiderScanConfig)
class ScstCiderScanCriterion(FairseqCriterion):
    """Policy gradient on drawn captions (POS-SCAN, Eqs. 17-19): -log p(caption) * (reward - baseline).

    Captions are drawn without gradient, with dropout as the published run draws them, and then read once by the
    wrapped model, whose gradients processes share; greedy captions are written in evaluation mode. The loss is a
    sum over drawn tokens and ``sample_size`` their number, the published mean, over all of ``--update-freq`` and
    all processes. With ``--teacher-path`` the drawn captions are distilled too, as in ``kl_attention_distill``; the
    teacher and the rewarding model may be two. Validation writes greedy captions: its loss is minus their mean reward.
    """

    def __init__(self, cfg: ScstCiderScanConfig, task):
        super().__init__(task)
        _check(cfg)
        self.cider_weight, self.scan_weight = cfg.cider_weight, cfg.scan_weight
        self.samples, self.temperature = cfg.samples_per_image, cfg.sampling_temperature
        self.max_length, self.baseline = cfg.max_sample_length, str(cfg.baseline)
        # where the captioner writes pieces, teachers, rewards and nouns stay on words
        self.words: Dictionary = task.word_dictionary
        self.eos = self.words.eos()
        nouns = noun_lookup(self.words.symbols, task.folder.noun_table(), self.words.nspecial)
        self._nouns = torch.from_numpy(nouns)
        self._cider: Dict[str, CiderD] = {}
        self.supervision: Optional[AttentionSupervision] = None
        if given(cfg) or str(cfg.attention_target) == "annotation":
            self.supervision = AttentionSupervision(cfg, task)
            if not self.supervision.reads_any:
                raise GroundingError(
                    "--criterion scst_cider_scan: captions that are drawn are in no file and have no boxes; teach their"
                    " attention with --teacher-path alone"
                )
        self.matcher: Optional[Teacher] = None
        if cfg.reward_path is not None:
            model = load_matching_model(cfg.reward_path, "--reward-path")
            name = f"--reward-path {cfg.reward_path}"
            self.matcher = Teacher(model, self.words, task.feature_size, name)
            logger.info(f"{name}: {type(model).__name__}, knows {self.matcher.coverage:.2%} of the training tokens")

    def forward(self, model, sample, reduce=True):
        """Return the loss, the number of drawn tokens (in validation of images), and what to log."""
        captioner = unwrap(model)
        self._check_run(captioner, sample["split"])
        first = _first_rows(sample["net_input"]["image_index"], len(sample["net_input"]["features"]))
        if not model.training:
            return self._validate(captioner, sample, first)
        drawn_rows = first.repeat_interleave(self.samples)
        net_input = rows_of(sample["net_input"], drawn_rows)
        target = sample_captions(captioner, net_input, self.max_length, self.temperature)
        written, rows = [target], [drawn_rows]
        if self.baseline == "greedy":
            written.append(greedy_captions(captioner, rows_of(sample["net_input"], first), self.max_length))
            rows.append(first)
        rewards = self._rewards(self._batch(sample, torch.cat(rows), _stacked(written, self.padding_idx)))
        drawn = rewards.rows(slice(len(target)))
        by_image = drawn.total.view(-1, self.samples)
        baseline = baselines(by_image, self.baseline, rewards.total[len(target) :]).reshape(-1)

        batch = self._batch(sample, drawn_rows, target)
        logits, extra = model(**batch["net_input"])
        mask = target.ne(self.padding_idx)
        log_probabilities = log_policy(logits[mask], self.padding_idx, self.temperature)
        logprobs = logits.new_zeros(target.shape, dtype=log_probabilities.dtype)
        logprobs[mask] = log_probabilities.gather(1, target[mask][:, None])[:, 0]
        loss, tokens = reward_loss(logprobs, drawn.total - baseline, mask)
        logged = {
            "loss": loss.detach(),
            "baseline": baseline.sum(),
            "entropy": entropy(log_probabilities.detach()).sum(),
            "ntokens": tokens,
            "sample_size": tokens,
            **self._logged(drawn, batch),
        }
        if self.supervision is not None:
            attention = (extra or {}).get("attn", [None])[0]
            if attention is None:
                raise GroundingError("--teacher-path: this architecture has no attention to teach")
            attention_sum, count = self.supervision(batch, attention)
            loss = loss + self.supervision.weight * attention_sum / count.clamp(min=1) * tokens
            logged.update(loss=loss.detach(), attention_loss=attention_sum.detach(), attention_words=count)
        return loss, tokens, logged

    def _validate(self, captioner, sample, first: Tensor):
        target = greedy_captions(captioner, rows_of(sample["net_input"], first), self.max_length)
        batch = self._batch(sample, first, target)
        rewards = self._rewards(batch)
        loss = -rewards.total.sum()
        logged = {
            "loss": loss,
            "ntokens": batch["ntokens"],
            "sample_size": len(first),
            **self._logged(rewards, batch),
        }
        return loss, len(first), logged

    def _check_run(self, captioner, split: str) -> None:
        if isinstance(captioner, MatchingModel):
            raise GroundingError(
                f"--criterion scst_cider_scan trains a captioner, and {type(captioner).__name__} is a matching model:"
                " use image_text_triplet"
            )
        items = self.task.datasets[split].items
        if items != "group":
            raise GroundingError(
                f"--items {items}: --criterion scst_cider_scan needs an image once, with all its captions to be"
                " compared to; use --items group"
            )
        sampling = getattr(captioner.decoder, "sampling", None)
        if sampling is not None and sampling.increase > 0:
            raise GroundingError(
                f"--scheduled-sampling-increase {sampling.increase}: --criterion scst_cider_scan trains on the"
                " captioner's own captions as they were drawn; leave it out"
            )

    def _batch(self, sample, rows: Tensor, target: Tensor) -> Dict[str, Any]:
        """Captions (N,T) as the data set hands out those of people, *rows* (N,) of the batch being their images'."""
        batch = {
            "split": sample["split"],
            **{name: sample[name][rows] for name in ("id", "caption")},
            "net_input": {
                **rows_of(sample["net_input"], rows),
                "prev_output_tokens": shifted(target, self.eos, self.padding_idx),
            },
            "target": target,
            "ntokens": target.ne(self.padding_idx).sum(),
            "nsentences": len(target),
        }
        self._nouns = self._nouns.to(target.device)
        if self.task.reader is None:
            return {**batch, "noun_mask": self._nouns[target]}
        words, places = self.task.reader.read(target)
        nouns = self._nouns[words]
        by_piece = nouns.gather(1, places.clamp(min=0)).masked_fill(places < 0, 0)
        return {**batch, "noun_mask": by_piece, "words": {"target": words, "noun_mask": nouns, "word_index": places}}

    @torch.no_grad()
    def _rewards(self, batch: Dict[str, Any]) -> Rewards:
        """The rewards of a batch's captions, each with its own image."""
        target = self.task.as_references(batch["target"])
        lengths = target.ne(self.padding_idx).sum(1)
        hypotheses = [row[:length] for row, length in zip(target.tolist(), lengths.tolist())]
        images = self.task.datasets[batch["split"]].image_of_caption[batch["caption"].cpu().numpy()]
        scores = self._scorer(batch["split"]).score(hypotheses, images)
        cider = torch.from_numpy(scores).to(target.device)
        matching = None
        if self.matcher is not None:
            encoded = self.matcher.encode({**batch, **batch.get("words", {})})
            matching = self.matcher.model.reward(encoded, batch["net_input"]["image_index"]).to(cider.dtype)
        return Rewards(total_reward(cider, matching, self.cider_weight, self.scan_weight), cider, matching)

    def _scorer(self, split: str) -> CiderD:
        if split not in self._cider:
            dataset = self.task.datasets[split]
            references = [dataset.references(image) for image in range(len(dataset.image_ids))]
            self._cider[split] = CiderD.from_references(references, self.task.folder.document_frequency())
        return self._cider[split]

    def _logged(self, rewards: Rewards, batch: Dict[str, Any]) -> Dict[str, Any]:
        words = batch.get("words", batch)["target"]
        logged = {
            "nsentences": batch["nsentences"],
            "reward": rewards.total.sum(),
            "reward_cider": rewards.cider.sum(),
            "sample_length": (words.ne(self.padding_idx) & words.ne(self.eos)).sum(),
        }
        return logged if rewards.matching is None else {**logged, "reward_matching": rewards.matching.sum()}

    @staticmethod
    def reduce_metrics(logging_outputs):
        """Means over captions; loss a mean over ``sample_size`` and entropy over tokens, in nats. ``sample_length``
        counts words; ``reward_cider`` and ``reward_matching`` are not yet weighed."""

        def total(name):
            return float(sum(log.get(name, 0) for log in logging_outputs))

        size, captions, tokens = (max(1.0, total(name)) for name in ("sample_size", "nsentences", "ntokens"))
        metrics.log_scalar("loss", total("loss") / size, size, round=4)
        there = {name for log in logging_outputs for name in log}
        for name in ("reward", "baseline", "reward_cider", "reward_matching", "sample_length"):
            if name in there:
                metrics.log_scalar(name, total(name) / captions, captions, round=4)
        if "attention_loss" in there:
            words = total("attention_words")
            metrics.log_scalar("attention_loss", total("attention_loss") / max(1.0, words), words, round=4)
        if "entropy" in there:
            metrics.log_scalar("entropy", total("entropy") / tokens, tokens, round=4)

    @staticmethod
    def logging_outputs_can_be_summed():
        """True: every value is a sum."""
        return True


def _first_rows(image_index: Tensor, images: int) -> Tensor:
    """The first row (I,) of each image in image_index (B,)."""
    rows = torch.arange(len(image_index), device=image_index.device)
    return rows.new_full((images,), len(rows)).scatter_reduce(0, image_index, rows, "amin")


def _stacked(captions: List[Tensor], pad: int) -> Tensor:
    """Several (.,T), of different T, one under the other."""
    longest = max(tokens.shape[1] for tokens in captions)
    padded = [torch.nn.functional.pad(tokens, (0, longest - tokens.shape[1]), value=pad) for tokens in captions]
    return torch.cat(padded)


def _check(cfg: ScstCiderScanConfig) -> None:
    for name in ("cider_weight", "scan_weight"):
        value = getattr(cfg, name)
        if not (math.isfinite(value) and value >= 0):
            raise GroundingError(f"--{name.replace('_', '-')} {value}: give 0 or more")
    if cfg.cider_weight == 0 and cfg.scan_weight == 0:
        raise GroundingError("--cider-weight 0 and --scan-weight 0: nothing is rewarded; give one of them more than 0")
    if cfg.scan_weight > 0 and cfg.reward_path is None:
        raise GroundingError(
            f"--scan-weight {cfg.scan_weight} needs a matching model: give --reward-path CHECKPOINT, or"
            " --scan-weight 0 for CIDEr alone"
        )
    for name in ("samples_per_image", "max_sample_length"):
        if getattr(cfg, name) < 1:
            raise GroundingError(f"--{name.replace('_', '-')} {getattr(cfg, name)}: give at least 1")
    if cfg.baseline == "leave-one-out" and cfg.samples_per_image < 2:
        raise GroundingError("--baseline leave-one-out compares an image's samples: give --samples-per-image 2 or more")
    if not (math.isfinite(cfg.sampling_temperature) and cfg.sampling_temperature > 0):
        raise GroundingError(f"--sampling-temperature {cfg.sampling_temperature}: give more than 0")
