"""The task ``grounded_caption``: captions on image regions, for matching models and captioners alike."""

import logging
import math
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

import numpy as np
import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.logging import metrics
from fairseq.optim import FairseqOptimizer
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II, MISSING, DictConfig

from ..data.grounded_caption_dataset import ITEMS, GroundedCaptionDataset
from ..data.pieces import PieceReader
from ..data.prepared import PreparedFolder
from ..dump import DumpWriter
from ..errors import GroundingError
from ..generation import CaptionScorer, MatchingScorer, dump_steps, whole_words
from ..model_config import check_sizes, complete
from ..modules.matching import READOUTS, READOUTS_HELP, MatchingModel
from ..modules.pieces import WORD_ATTENTION
from ..modules.wrapped import unwrap
from ..validation import (
    HALLUCINATION,
    SplitPass,
    caption_metrics,
    grounding_metrics,
    hallucination_metrics,
    retrieval_metrics,
)

logger = logging.getLogger(__name__)

# the epoch where nobody said which: late enough that every schedule is at its end
FINAL_EPOCH = 1_000_000
COUNTED = "_evaluated"
UNITS = ("words", "pieces")
# a caption that validation decodes has so many at most
MOST_WORDS = 20


@dataclass
class GroundedCaptionConfig(FairseqDataclass):
    data: str = field(default=MISSING, metadata={"help": "folder that fairseq-grounding prepare-captions wrote"})
    regions: Optional[str] = field(
        default=None, metadata={"help": "region store, regions.h5 (default: the one that the folder was prepared with)"}
    )
    items: ChoiceEnum(ITEMS) = field(  # type: ignore[valid-type]
        default="caption",
        metadata={
            "help": "what --batch-size counts. caption: one caption an item; image: one image, for generation;"
            " group: an image with all its captions, for training"
        },
    )
    max_regions: int = field(default=100, metadata={"help": "at most so many regions an image, the store's first"})
    max_target_positions: int = field(
        default=50, metadata={"help": "captions are cut to so many tokens, the end symbol included"}
    )
    readout: ChoiceEnum(READOUTS) = field(  # type: ignore[valid-type]
        default="normalised",
        metadata={"help": f"how --score-reference reads attention off a matching model. {READOUTS_HELP}"},
    )
    units: Optional[ChoiceEnum(UNITS)] = field(  # type: ignore[valid-type]
        default=None,
        metadata={
            "help": "what a token is, in a folder prepared with --sentencepiece: pieces, for captioners, or words, as"
            " matching models need (default: pieces where the folder has them)"
        },
    )
    word_attention: ChoiceEnum(WORD_ATTENTION) = field(  # type: ignore[valid-type]
        default="first",
        metadata={
            "help": "where a captioner that writes pieces looks for a word, where it is taught and in dumps. first: as"
            " for the word's first piece; mean: the mean of its pieces"
        },
    )
    eval_retrieval: bool = field(
        default=False, metadata={"help": "validation logs recall at 1, 5, 10 both ways and rsum (matching models)"}
    )
    eval_caption_metrics: bool = field(
        default=False, metadata={"help": "validation decodes each image greedily and logs cider and bleu4 (captioners)"}
    )
    eval_grounding: bool = field(
        default=False,
        metadata={
            "help": "validation logs attention_accuracy on the given captions and f1_all, f1_loc on greedy ones;"
            " needs a folder prepared with --entities"
        },
    )
    eval_hallucination: bool = field(
        default=False,
        metadata={
            "help": "validation decodes each image greedily and logs hallucination_rate, the share of nouns that no"
            " caption of the image has, and object_precision, the mean over the 20 nouns most frequent in training of"
            " how often such a caption has the noun where it is said (captioners)"
        },
    )
    grounding_dump: Optional[str] = field(
        default=None,
        metadata={"help": "fairseq-generate writes here, one JSON object a line, what region each word came from"},
    )
    clip_value: float = field(
        default=0.0,
        metadata={
            "help": "clamp each gradient to this size, up or down, just before the step, when all of --update-freq are"
            " summed and divided by sample_size and --clip-norm has scaled them (0: not at all; as published: 0.1 for"
            " captioners, which then have --clip-norm 0)"
        },
    )
    seed: int = II("common.seed")
    best_checkpoint_metric: str = II("checkpoint.best_checkpoint_metric")


@register_task("grounded_caption", dataclass=GroundedCaptionConfig)
class GroundedCaptionTask(FairseqTask):
    """Loads prepared captions and regions; decodes, reads and scores captions, and dumps their grounding."""

    cfg: GroundedCaptionConfig

    def __init__(self, cfg: GroundedCaptionConfig):
        super().__init__(cfg)
        _check_flags(cfg)
        self.folder = PreparedFolder(cfg.data)
        self.word_dictionary = self.dictionary = self.folder.dictionary()
        self.reader: Optional[PieceReader] = None
        if str(cfg.units or "pieces") == "pieces" and (cfg.units is not None or self.folder.has_pieces):
            self.dictionary = self.folder.piece_dictionary()
            self.reader = PieceReader(self.dictionary, self.word_dictionary)
        self.store = self.folder.region_store(cfg.regions)
        self.feature_size = self.store.feature_size
        self.epoch = FINAL_EPOCH
        # an attribute of this name would be the mapping's own method
        self._items = str(cfg["items"] if isinstance(cfg, DictConfig) else cfg.items)
        self._greedy: List[Any] = []
        self._passes: Dict[str, SplitPass] = {}
        self._validating: Optional[str] = None
        self._evaluated: Any = None
        self._dump: Optional[DumpWriter] = None

    @classmethod
    def setup_task(cls, cfg, **kwargs):
        """The task of *cfg*; what else fairseq says when it loads a checkpoint is of no use here."""
        return cls(cfg)

    @property
    def source_dictionary(self) -> None:
        """None: the source is regions."""
        return None

    @property
    def target_dictionary(self):
        """The captions' dictionary, of words or pieces; ``word_dictionary`` is of words in any case."""
        return self.dictionary

    def max_positions(self):
        """Regions and tokens that an item has at most; the data set cuts to them."""
        return self.cfg.max_regions, self.cfg.max_target_positions

    def model_feature_size(self, cfg) -> int:
        """The width of the features that a model of *cfg* reads; refused where the store's differs."""
        if cfg.feature_size is not None and cfg.feature_size != self.feature_size:
            raise GroundingError(
                f"the model reads features of width {cfg.feature_size}, but {self.store.path} has width"
                f" {self.feature_size}; give --regions the store that it was trained on"
            )
        return self.feature_size

    def load_dataset(self, split: str, combine: bool = False, task_cfg=None, **kwargs) -> None:
        """Load *split* (train, valid or test)."""
        if self.cfg.eval_grounding and split != "train":
            self._need_boxes(split)
        self.datasets[split] = GroundedCaptionDataset(
            self.folder.split(split),
            self.store,
            self.dictionary,
            self._items,
            self.cfg.max_regions,
            self.cfg.max_target_positions,
            shuffle=split == "train",
            seed=self.cfg.seed,
            reader=self.reader,
        )

    def _need_boxes(self, split: str) -> None:
        objects = self.folder.objects()
        if objects is None or split not in objects["splits"].values():
            raise GroundingError(
                f"--eval-grounding: {self.folder.path} holds no entity boxes of the split {split!r}; prepare it with"
                " --entities of these images, or leave the flag out"
            )

    def get_batch_iterator(self, dataset, *args, num_shards=1, shard_id=0, **kwargs):
        """fairseq's iterator; notes how many rows this process's share of *dataset* has, for the dump."""
        iterator = super().get_batch_iterator(dataset, *args, num_shards=num_shards, shard_id=shard_id, **kwargs)
        batches = iterator.frozen_batches[shard_id::num_shards]
        self._rows = sum(len(dataset.captions_of(item)) for batch in batches for item in batch)
        return iterator

    def begin_epoch(self, epoch, model) -> None:
        """Note the epoch, for criteria with a schedule."""
        self.epoch = epoch

    # ---- generation ----

    def build_generator(self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, **kwargs):
        """fairseq's generator for captioners; a reader of given captions with ``--score-reference``."""
        form = getattr(args, "print_alignment", None)
        reads = getattr(args, "score_reference", False)
        kinds = {isinstance(model, MatchingModel) for model in models}
        if kinds == {True, False}:
            raise GroundingError("--path: matching models and captioners cannot be put into one ensemble")
        if kinds == {True}:
            if not reads:
                name = type(models[0]).__name__
                raise GroundingError(f"{name} is a matching model and writes no captions: add --score-reference")
            return MatchingScorer(self.dictionary, str(self.cfg.readout), form)
        if form and not any(attends(model) for model in models):
            name = type(models[0]).__name__
            logger.warning(f"--print-alignment: {name} has no attention, so no alignment is printed")
            # fairseq-generate asks the same object again when it prints
            form = args.print_alignment = None
        if reads:
            logger.info("the captions are given, not written: what fairseq prints as their BLEU says nothing")
            return CaptionScorer(self.dictionary, form)
        if seq_gen_cls is None and self._items != "image":
            logger.warning("every image is decoded once for each of its captions: --items image decodes it once")
        return super().build_generator(models, args, seq_gen_cls, extra_gen_cls_kwargs, **kwargs)

    def inference_step(self, generator, models, sample, prefix_tokens=None, constraints=None):
        """Decode or read a batch, and dump it where asked."""
        reads = isinstance(generator, (CaptionScorer, MatchingScorer))
        if reads and sample["target"] is None:
            raise GroundingError("--score-reference reads captions, but --items image hands out none: leave it out")
        hypotheses = super().inference_step(generator, models, sample, prefix_tokens, constraints)
        if self.cfg.grounding_dump is not None:
            if self._dump is None:
                self._dump = DumpWriter(self.cfg.grounding_dump, self._rows)
            for row in self.dump_rows(models[0], sample, hypotheses, reads):
                self._dump.write(row)
        return hypotheses

    def dump_rows(self, model, sample, hypotheses, reference: bool) -> List[Dict[str, Any]]:
        """The best hypothesis of each caption of a batch as rows of a grounding dump.

        Args:
            model: whose name the rows bear
            sample: the batch
            hypotheses: a list for each row of the batch, the best first, ``attention`` (R,T)
            reference: whether the captions were given, not written
        """
        dataset = self.datasets[sample["split"]]
        eos = self.dictionary.eos()
        rows = []
        for number, caption, hypothesis in zip(sample["id"].tolist(), sample["caption"].tolist(), hypotheses):
            best = hypothesis[0]
            spoken = [token for token in best["tokens"].tolist() if token != eos]
            tokens = [self.dictionary[token] for token in spoken]
            attention = best["attention"]
            attention = attention.float().cpu() if attention is not None and attention.numel() > 0 else None
            logprobs = None if isinstance(model, MatchingModel) else best["positional_scores"].tolist()
            if self.reader is not None:
                how = str(self.cfg.word_attention)
                tokens, attention, logprobs = whole_words(self.reader, spoken, attention, logprobs, how)
            image_id = dataset.split.image_ids[caption]
            image = dataset.image_of_caption[caption]
            regions, boxes = int(dataset.region_counts[image]), None
            if dataset.store.has_boxes:
                boxes = dataset.store.boxes(int(dataset.stored[image]), limit=dataset.max_regions)
            rows.append(
                {
                    "id": number,
                    "image_id": image_id,
                    "caption_index": int(dataset.split.caption_index[caption]) if reference else None,
                    "model": model.architecture,
                    "reference": reference,
                    "text": dataset.split.texts[caption] if reference else " ".join(tokens),
                    "tokens": tokens,
                    "steps": dump_steps(tokens, attention, regions, boxes, logprobs),
                }
            )
        return rows

    # ---- training ----

    def optimizer_step(self, optimizer, model, update_num) -> None:
        """The optimizer's step, after ``--clip-value``."""
        if self.cfg.clip_value:
            _clamp_gradients(optimizer, self.cfg.clip_value)
        super().optimizer_step(optimizer, model, update_num)

    # ---- validation ----

    def begin_valid_epoch(self, epoch, model) -> None:
        """Start the metrics of whole splits anew."""
        self._passes.clear()
        self._validating = None

    def train_step(self, sample, *args, **kwargs):
        """fairseq's step, on batches with captions."""
        _need_captions(sample)
        return super().train_step(sample, *args, **kwargs)

    def valid_step(self, sample, model, criterion):
        """The criterion's loss, and what the metrics of the whole split need of this batch."""
        _need_captions(sample)
        loss, sample_size, logged = super().valid_step(sample, model, criterion)
        self._evaluated = unwrap(model)
        if not self._metric_names():
            return loss, sample_size, logged
        split = self._validating = sample["split"]
        if split not in self._passes or self._passes[split].complete:
            self._passes[split] = SplitPass(len(self.datasets[split].split))
        if isinstance(self._evaluated, MatchingModel):
            self._keep_embeddings(self._passes[split], sample)
        else:
            self._keep_captions(self._passes[split], sample)
        return loss, sample_size, {**logged, COUNTED: len(sample["caption"])}

    def _keep_embeddings(self, kept: SplitPass, sample) -> None:
        net_input = {k: v for k, v in sample["net_input"].items() if k not in ("src_lengths", "prev_output_tokens")}
        encoded = self._evaluated.encode(**net_input, target=sample["target"], noun_mask=sample["noun_mask"])
        captions = sample["caption"].tolist()
        dataset = self.datasets[sample["split"]]
        kept.add_encoded(encoded, np.unique(dataset.image_of_caption[captions]), captions)

    def _keep_captions(self, kept: SplitPass, sample) -> None:
        dataset = self.datasets[sample["split"]]
        captions = sample["caption"].tolist()
        images = dataset.image_of_caption[captions]
        first = [row for row in np.unique(images, return_index=True)[1] if int(images[row]) not in kept.generated]
        if first:
            written = self._decode(self._rows_of(sample, first))
            for row, hypothesis, dumped in zip(first, *written):
                kept.generated[int(images[row])] = self.as_references(hypothesis[0]["tokens"][None])[0].tolist(), dumped
        if self.cfg.eval_grounding and attends(self._evaluated):
            hypotheses = CaptionScorer(self.dictionary).generate([self._evaluated], sample)
            rows = self.dump_rows(self._evaluated, sample, hypotheses, reference=True)
            kept.read.update(zip(captions, rows))

    @staticmethod
    def _rows_of(sample, rows):
        """The batch with these rows alone, as for generation."""
        chosen = torch.as_tensor(np.array(rows), device=sample["id"].device)
        net_input = {
            name: tensor if name in ("features", "boxes") else tensor.index_select(0, chosen)
            for name, tensor in sample["net_input"].items()
            if name != "prev_output_tokens"
        }
        images, net_input["image_index"] = net_input["image_index"].unique(return_inverse=True)
        net_input["features"] = net_input["features"][images]
        net_input["boxes"] = net_input["boxes"][images]
        ids = {name: sample[name].index_select(0, chosen) for name in ("id", "caption")}
        return {**sample, **ids, "net_input": net_input, "target": None}

    def as_references(self, tokens):
        """Captions (B,T) of tokens as (B,W), in the numbers of the words that references are in."""
        if self.reader is None:
            return tokens
        # no reference has the number of a word that the dictionary lacks
        return self.reader.read(tokens, unknown=len(self.word_dictionary))[0]

    def _decode(self, sample):
        """Greedy captions of a batch, and their dump rows."""
        model = self._evaluated
        if not self._greedy or self._greedy[0] is not model:
            training = model.training
            length = MOST_WORDS
            if self.reader is not None:
                length = math.ceil(length * self.folder.meta["sentencepiece"]["train_pieces_per_word"])
            args = Namespace(beam=1, max_len_a=0, max_len_b=length)
            self._greedy = [model, super().build_generator([model], args)]
            # the generator's constructor calls eval()
            model.train(training)
        with torch.no_grad():
            hypotheses = self._greedy[1].generate([model], sample)
        return hypotheses, self.dump_rows(model, sample, hypotheses, reference=False)

    def reduce_metrics(self, logging_outputs, criterion) -> None:
        """The criterion's metrics, and those of the whole split once it is complete (0 before that)."""
        super().reduce_metrics(logging_outputs, criterion)
        counted = sum(int(log.get(COUNTED, 0)) for log in logging_outputs)
        if not counted or self._validating is None:
            return
        kept = self._passes[self._validating]
        kept.count(counted, self._whole_split)
        for name in self._metric_names():
            metrics.log_derived(name, lambda meters, name=name: kept.result.get(name, 0.0))

    def _metric_names(self) -> List[str]:
        if isinstance(self._evaluated, MatchingModel):
            return list(_ASKED_FOR["eval_retrieval"]) if self.cfg.eval_retrieval else []
        fitting = ["eval_caption_metrics", "eval_hallucination"]
        fitting += ["eval_grounding"] if attends(self._evaluated) else []
        asked = [flag for flag in fitting if getattr(self.cfg, flag)]
        return [name for flag in asked for name in _ASKED_FOR[flag]]

    def _whole_split(self, kept: SplitPass) -> Dict[str, float]:
        assert self._validating is not None
        dataset = self.datasets[self._validating]
        if isinstance(self._evaluated, MatchingModel):
            return retrieval_metrics(self._evaluated, kept.images, kept.captions, dataset.image_of_caption)
        result: Dict[str, float] = {}
        if self.cfg.eval_caption_metrics or self.cfg.eval_hallucination:
            tokens = {number: tokens for number, (tokens, _) in kept.generated.items()}
            references = {number: dataset.references(number) for number in tokens}
            if self.cfg.eval_caption_metrics:
                result.update(caption_metrics(tokens, references, self.folder.document_frequency()))
            if self.cfg.eval_hallucination:
                words, table = self.word_dictionary, self.folder.noun_table()
                result.update(hallucination_metrics(tokens, references, words, table))
        if self.cfg.eval_grounding and attends(self._evaluated):
            objects = self.folder.objects()
            assert objects is not None
            rows = [row for _, row in kept.generated.values()] + list(kept.read.values())
            result.update(grounding_metrics(objects, rows))
        return result

    def _warn_of_idle_flags(self, model) -> None:
        if isinstance(model, MatchingModel):
            idle = dict.fromkeys(("eval_caption_metrics", "eval_grounding", "eval_hallucination"), "captioners")
        else:
            idle = {"eval_retrieval": "matching models"}
            if not attends(model):
                idle["eval_grounding"] = "models with attention"
        for name, kind in idle.items():
            if self.cfg.best_checkpoint_metric in _ASKED_FOR[name]:
                raise GroundingError(f"--best-checkpoint-metric {self.cfg.best_checkpoint_metric} is for {kind}")
            if getattr(self.cfg, name):
                logger.warning(f"--{name.replace('_', '-')} is for {kind}: it does nothing here")

    def build_model(self, cfg, from_checkpoint=False):
        """Build the model, and note in its *cfg*, which its checkpoints hold, what shaped it."""
        complete(cfg)
        check_sizes(cfg)
        feature_size = self.model_feature_size(cfg)
        cfg.feature_size = feature_size
        model = super().build_model(cfg, from_checkpoint)
        # what a file settled: a checkpoint is read where that file is not
        for name, value in getattr(model, "settled", {}).items():
            setattr(cfg, name, value)
        if isinstance(model, MatchingModel) and self.reader is not None:
            raise GroundingError(
                f"{type(model).__name__} is a matching model and reads words, but the tokens of {self.folder.path} are"
                " pieces: add --units words"
            )
        self._warn_of_idle_flags(model)
        model.architecture = str(getattr(cfg, "_name", None) or getattr(cfg, "arch", type(model).__name__))
        return model


# the metrics that validation logs only when a flag asks for them
_ASKED_FOR = {
    "eval_retrieval": ("rsum", *(f"{way}_{rank}" for way in ("i2t", "t2i") for rank in ("r1", "r5", "r10", "medr"))),
    "eval_caption_metrics": ("cider", "bleu4"),
    "eval_grounding": ("attention_accuracy", "f1_all", "f1_loc"),
    "eval_hallucination": HALLUCINATION,
}


def _check_flags(cfg: GroundedCaptionConfig) -> None:
    if cfg.max_regions < 1:
        raise GroundingError(f"--max-regions {cfg.max_regions}: give at least 1")
    if cfg.max_target_positions < 2:
        raise GroundingError(f"--max-target-positions {cfg.max_target_positions}: give at least 2, a word and the end")
    if not (math.isfinite(cfg.clip_value) and cfg.clip_value >= 0):
        raise GroundingError(f"--clip-value {cfg.clip_value}: give more than 0, or 0 for no clipping")
    for flag, names in _ASKED_FOR.items():
        if cfg.best_checkpoint_metric in names and not getattr(cfg, flag):
            raise GroundingError(
                f"--best-checkpoint-metric {cfg.best_checkpoint_metric} is logged only with --{flag.replace('_', '-')}"
            )


def _clamp_gradients(optimizer: FairseqOptimizer, most: float) -> None:
    # optimizers in half precision leave loss scale, sample_size and --clip-norm to their step
    unscale = getattr(optimizer, "_unscale_grads", None)
    if unscale is not None:
        unscale()
    for parameter in optimizer.params:
        if parameter.grad is not None:
            parameter.grad.clamp_(-most, most)


def attends(model: Any) -> bool:
    """Whether a captioner has attention: it does unless its class says ``attends = False``."""
    return bool(getattr(model, "attends", True))


def _need_captions(sample: Dict[str, Any]) -> None:
    if sample.get("target", 0) is None:
        raise GroundingError(
            "--items image hands out images without captions, for generation: train and validate with --items caption"
            " or group"
        )
