"""What tells a captioner where to look: a teacher, its attention from a file, or annotated boxes."""

import logging
import math
from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor

from ..checkpoints import load_matching_model
from ..data.teacher_cache import TeacherCache
from ..errors import GroundingError
from ..modules.matching import READOUTS, READOUTS_HELP
from ..modules.pieces import by_words
from ..modules.teacher import Teacher, weights_hash
from .annotated_attention import BOXES, AnnotatedAttention
from .attention_loss import KINDS, attention_loss

logger = logging.getLogger(__name__)


@dataclass
class AttentionSupervisionConfig(FairseqDataclass):
    teacher_path: Optional[str] = field(
        default=None, metadata={"help": "checkpoint of the matching model that teaches (scan, pos_scan, dvsa)"}
    )
    teacher_attention: Optional[str] = field(
        default=None,
        metadata={
            "help": "file of fairseq-grounding cache-teacher: the teacher's attention, computed once. No teacher runs"
            " then; --teacher-path beside it checks that the file is of that checkpoint"
        },
    )
    teacher_readout: ChoiceEnum(READOUTS) = field(  # type: ignore[valid-type]
        default="normalised",
        metadata={"help": f"how attention is read off the teacher. {READOUTS_HELP}"},
    )
    attention_target: ChoiceEnum(["teacher", "annotation"]) = field(  # type: ignore[valid-type]
        default="teacher",
        metadata={"help": "who says where to look: a teacher, or the boxes of a folder prepared with --entities"},
    )
    attention_boxes: ChoiceEnum(BOXES) = field(  # type: ignore[valid-type]
        default="best",
        metadata={
            "help": "with --attention-target annotation. best: the region that overlaps the word's box most, if by IoU"
            " above 0.5 (published with --attention-loss nll); all: every region above 0.5 (Eq. 16 with nll-all); soft:"
            " softmax over regions of IoU / 0.5"
        },
    )
    attention_words: ChoiceEnum(["nouns", "all"]) = field(  # type: ignore[valid-type]
        default="nouns",
        metadata={
            "help": "at which words the teacher is followed: nouns (and what else its --ground-pos names), or all;"
            " annotation says itself which words have boxes"
        },
    )
    attention_loss: ChoiceEnum(KINDS) = field(  # type: ignore[valid-type]
        default="kl",
        metadata={
            "help": "kl: KL(target, attention), as published; reverse-kl: as printed in Eq. 15; nll: the target's"
            " highest region is the right one; nll-all: several are (--attention-boxes all)"
        },
    )
    attention_weight: float = field(default=0.1, metadata={"help": "weight of the attention loss beside the main one"})


class AttentionSupervision:
    """The attention loss of a captioner on a batch, by whichever target the flags name.

    No ``nn.Module``: the teacher in it gets into no checkpoint.

    Args:
        cfg: the flags
        task: the captioner's

    Attributes:
        weight: ``--attention-weight``
        reads_any: whether it can supervise captions that are in no file, such as drawn ones

    Raises:
        GroundingError: flags that do not go together, or a teacher or file that does not go with the data
    """

    def __init__(self, cfg: AttentionSupervisionConfig, task):
        self.weight = cfg.attention_weight
        self.kind, self.words = str(cfg.attention_loss), str(cfg.attention_words)
        self.readout = str(cfg.teacher_readout)
        self.task = task
        self.teacher: Optional[Teacher] = None
        self.cache: Optional[TeacherCache] = None
        self.annotation: Optional[AnnotatedAttention] = None
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise GroundingError(f"--attention-weight {self.weight}: give 0 or more")
        if str(cfg.attention_target) == "annotation":
            if given(cfg):
                raise GroundingError("--attention-target annotation takes no teacher: leave one of the two out")
            self.annotation = AnnotatedAttention(task.folder, str(cfg.attention_boxes), self.kind, task.datasets)
            return
        if self.kind == "nll-all":
            raise GroundingError("--attention-loss nll-all is for --attention-target annotation; give nll")
        if cfg.teacher_attention is not None:
            self.cache = TeacherCache(cfg.teacher_attention)
            self._check_cache(cfg.teacher_path)
        else:
            self._load_teacher(cfg.teacher_path)

    @property
    def reads_any(self) -> bool:
        return self.teacher is not None

    def __call__(self, sample: Dict[str, Any], attention: Tensor) -> Tuple[Tensor, Tensor]:
        """The attention loss.

        Args:
            sample: a batch of the data set, or one like it with captions that were drawn
            attention: (B,T,R) the captioner's

        Returns:
            the sum over words that count, and their number, as :func:`attention_loss`
        """
        words, attention = by_words(sample, attention.float(), str(self.task.cfg.word_attention))
        target, mask = self._target(words)
        return attention_loss(attention, target, mask, self.kind)

    def _target(self, words: Dict[str, Any]) -> Tuple[Tensor, Tensor]:
        if self.annotation is not None:
            return self.annotation(words)
        if self.cache is not None:
            target, grounded = self._cached(self.cache, words)
        else:
            assert self.teacher is not None
            target, grounded = self.teacher.attention(words, self.readout)
        if self.words == "nouns":
            return target, grounded
        read, dictionary = words["target"], self.task.word_dictionary
        return target, read.ne(dictionary.pad()) & read.ne(dictionary.eos())

    def _cached(self, cache: TeacherCache, words: Dict[str, Any]) -> Tuple[Tensor, Tensor]:
        captions, read, net_input = words["caption"].tolist(), words["target"], words["net_input"]
        lengths = read.ne(self.task.word_dictionary.pad()).sum(1).cpu().numpy() - 1
        stored_lengths, stored_regions = cache.shapes(words["split"])
        name = f"--teacher-attention {cache.path}: caption"
        if (stored_lengths[captions] != lengths).any():
            row = int((stored_lengths[captions] != lengths).argmax())
            raise GroundingError(
                f"{name} {captions[row]} of {words['split']} has {stored_lengths[captions[row]]} words in it and"
                f" {lengths[row]} here, since they are cut differently; run cache-teacher with this run's"
                " --max-target-positions (for a captioner of pieces, give this run a larger one)"
            )
        regions = net_input["src_lengths"].cpu().numpy()
        if (stored_regions[captions] != regions).any():
            row = int((stored_regions[captions] != regions).argmax())
            raise GroundingError(
                f"{name} {captions[row]} of {words['split']} has {stored_regions[captions[row]]} regions in it and"
                f" {regions[row]} here; run cache-teacher with this run's --regions and --max-regions"
            )
        shape = read.shape[1], net_input["src_tokens"].shape[1]
        attention, grounded = cache.attention(words["split"], captions, *shape)
        return attention.to(read.device), grounded.to(read.device)

    def _load_teacher(self, path: Optional[str]) -> None:
        if path is None:
            raise GroundingError(
                "--criterion kl_attention_distill needs a teacher: give --teacher-path CHECKPOINT, --teacher-attention"
                " FILE or --attention-target annotation"
            )
        model = load_matching_model(path, "--teacher-path")
        name = f"--teacher-path {path}"
        self.teacher = Teacher(model, self.task.word_dictionary, self.task.feature_size, name)
        self._check_words(name, model.nouns_only)
        logger.info(f"{name}: {type(model).__name__}, knows {self.teacher.coverage:.2%} of the training tokens")

    def _check_words(self, name: str, nouns_only: bool) -> None:
        if self.words == "all" and nouns_only:
            raise GroundingError(f"{name}: attends at nouns only; --attention-words all needs a teacher on all words")

    def _check_cache(self, teacher_path: Optional[str]) -> None:
        assert self.cache is not None
        name, origin, folder = f"--teacher-attention {self.cache.path}", self.cache.origin, self.task.folder
        if origin.folder != folder.content_hash():
            raise GroundingError(
                f"{name}: was made of other captions than {folder.path} holds; run cache-teacher on that folder"
            )
        # not what the folder was prepared with: --regions may name another store, with as many regions an image
        if origin.regions != self.task.store.content_hash():
            raise GroundingError(
                f"{name}: was made of other regions than {self.task.store.path} holds; run cache-teacher with this"
                " run's --regions"
            )
        if origin.readout != self.readout:
            raise GroundingError(
                f"{name}: was read as {origin.readout}, not --teacher-readout {self.readout}; change one of the two"
            )
        if teacher_path is not None and origin.teacher != weights_hash(
            load_matching_model(teacher_path, "--teacher-path")
        ):
            raise GroundingError(f"{name}: was made with other weights than {teacher_path}; run cache-teacher again")
        self._check_words(name, origin.nouns_only)
        for split in ("train", "valid"):
            if split in folder.splits():
                self.cache.shapes(split)


def given(cfg: AttentionSupervisionConfig) -> bool:
    """Whether the flags name a teacher, live or from a file."""
    return cfg.teacher_path is not None or cfg.teacher_attention is not None
