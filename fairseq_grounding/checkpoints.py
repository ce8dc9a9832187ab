"""Loading a model on its own from a checkpoint, without the folder it was trained on."""

from __future__ import annotations

import collections
import os
import pickle
import typing
from dataclasses import dataclass

import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.distributed import utils as distributed_utils
from fairseq.models import BaseFairseqModel, FairseqEncoderDecoderModel, build_model
from omegaconf import DictConfig, ListConfig
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.nodes import AnyNode

from .errors import GroundingError
from .model_config import complete
from .modules.matching import MatchingModel
from .modules.vocabulary import dictionary_in


def allow_configs() -> None:
    """Let torch's safe loader read the configuration objects that fairseq passes between processes."""
    torch.serialization.add_safe_globals(
        [
            DictConfig,
            ListConfig,
            ContainerMetadata,
            Metadata,
            AnyNode,
            typing.Any,
            dict,
            list,
            int,
            collections.defaultdict,
            collections.OrderedDict,
            # stands for the tensors of a state that one process reads and the others are sent
            distributed_utils._TensorPlaceholder,
        ]
    )


@dataclass
class _Standalone:
    """The little of a task that building a model needs."""

    target_dictionary: Dictionary
    feature_size: int

    @property
    def source_dictionary(self) -> None:
        return None

    def model_feature_size(self, cfg: typing.Any) -> int:
        return self.feature_size


def load_matching_model(path: str | os.PathLike[str], flag: str) -> MatchingModel:
    """The matching model in a checkpoint, frozen, in evaluation mode and on the CPU.

    Args:
        path: a checkpoint that ``fairseq-train`` wrote
        flag: the flag it came by, named in errors

    Raises:
        GroundingError: no such file, no checkpoint, or not of a matching model
    """
    name, model = _load(path, flag)
    if not isinstance(model, MatchingModel):
        raise GroundingError(
            f"{flag} {path}: holds the captioner {name}; give a checkpoint of a matching model (scan, pos_scan, dvsa)"
        )
    return model


def load_captioner(path: str | os.PathLike[str], flag: str) -> FairseqEncoderDecoderModel:
    """The captioner in a checkpoint, as :func:`load_matching_model` loads a matching model."""
    name, model = _load(path, flag)
    if not isinstance(model, FairseqEncoderDecoderModel):
        raise GroundingError(
            f"{flag} {path}: holds the matching model {name}, which writes no captions; give a checkpoint of a"
            " captioner (up_down, adaptive_attention, multimodal_rnn and others)"
        )
    return model


def _load(path: str | os.PathLike[str], flag: str) -> tuple[str, BaseFairseqModel]:
    """Name and model of a checkpoint: frozen, in evaluation mode, on the CPU."""
    if not os.path.isfile(path):
        raise GroundingError(f"{flag} {path}: no such file")
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
        cfg, weights = state["cfg"]["model"], state["model"]
        words = dictionary_in(weights)
    # a file that is none, or a part of one, fails in many ways
    except (
        OSError,
        RuntimeError,
        LookupError,
        TypeError,
        EOFError,
        ValueError,
        AttributeError,
        pickle.UnpicklingError,
    ) as error:
        raise GroundingError(f"{flag} {path}: is not a checkpoint that fairseq-train wrote") from error
    name = getattr(cfg, "_name", None) or (cfg.get("_name") if hasattr(cfg, "get") else None)
    complete(cfg)
    if words is None or cfg.get("feature_size") is None:
        raise GroundingError(f"{flag} {path}: holds {name}, which is no model of this plugin")
    model = build_model(cfg, _Standalone(words, int(cfg.feature_size)))
    model.load_state_dict(weights, strict=True)
    # what dumps call it
    model.architecture = str(name)
    return str(name), model.requires_grad_(False).eval()
