"""A frozen matching model beside a captioner: its words, its device, its attention."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from ..errors import GroundingError
from .matching import Encoded, MatchingModel

MIN_COVERAGE = 0.95


def word_table(student: Dictionary, teacher: Dictionary) -> tuple[Tensor, float]:
    """From the student's token to the teacher's, by word.

    Returns:
        table (V,) of the teacher's token ids (its ``<unk>`` where it lacks the word), and the share of the
        student's training tokens whose word the teacher knows
    """
    table = torch.tensor([teacher.index(word) for word in student.symbols])
    words = range(student.nspecial, len(student))
    known = sum(student.count[n] for n in words if int(table[n]) != teacher.unk())
    return table, known / max(1, sum(student.count[n] for n in words))


def weights_hash(model: MatchingModel) -> str:
    """SHA-256 over a model's parameters and buffers, by name: where it was saved does not matter."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class Teacher:
    """Reads the captioner's batches with a matching model.

    No ``nn.Module``, on purpose: so it gets into no checkpoint, and no ``train()`` of the student reaches it.

    Args:
        model: frozen
        dictionary: the captioner's, with counts
        feature_size: of the region store
        name: the flag and path it came by, named in errors

    Raises:
        GroundingError: the features differ in width, or the teacher knows less than 95% of the training tokens
    """

    def __init__(self, model: MatchingModel, dictionary: Dictionary, feature_size: int, name: str):
        if model.feature_size != feature_size:
            raise GroundingError(
                f"{name}: was trained on features of width {model.feature_size}, the region store has {feature_size}"
            )
        self.table, self.coverage = word_table(dictionary, model.words)
        if self.coverage < MIN_COVERAGE:
            raise GroundingError(
                f"{name}: its dictionary covers {self.coverage:.1%} of the training tokens, less than"
                f" {MIN_COVERAGE:.0%}; train the matching model on captions of the same kind"
            )
        self.model = model

    @torch.no_grad()
    def encode(self, sample: dict[str, Any]) -> Encoded:
        """Embed a batch with the teacher, on the batch's device and in single precision."""
        net_input = sample["net_input"]
        target = sample["target"]
        self.model.to(target.device)
        self.table = self.table.to(target.device)
        return self.model.encode(
            net_input["src_tokens"],
            net_input["features"].float(),
            net_input["boxes"].float(),
            net_input["image_index"],
            self.table[target],
            sample["noun_mask"],
        )

    @torch.no_grad()
    def attention(self, sample: dict[str, Any], readout: str) -> tuple[Tensor, Tensor]:
        """Where the teacher looks at each token of ``target`` (B,T,R), zeros where it does not; and which tokens it
        grounds (B,T): the nouns, and what else its ``--ground-pos`` names."""
        encoded = self.encode(sample)
        return self.model.attend_own(encoded, sample["net_input"]["image_index"], readout)[1], encoded.noun_mask
