"""How relevance goes through each architecture: a description of its forward pass on a tape.

To explain another captioner by ``lrp``, write a module beside this one with a subclass of :class:`Architecture`:

1. ``layers`` names every module of the model that has no modules of its own, with its type. A model that has
   another one is refused by that name.
2. ``replay`` runs the forward pass with the methods of a :class:`~..tape.Tape` in place of the layers, in evaluation
   mode, for the steps that are needed:

   - ``tape.input`` for what relevance is asked of: region features, and each step's word embedding
     (``since=first(step)``, since a word speaks for itself and later ones only);
   - ``tape.linear`` for linear layers, several inputs of one layer as several parts (no concatenation);
   - ``cells.lstm_cell`` for LSTMs; leave the zeros of the start out;
   - ``tape.attend`` for attention of one or more heads; whatever makes the weights (keys, queries, scores) is computed
     with plain torch and gets nothing;
   - ``tape.weighted`` for residuals, sentinel mixtures (``[(sentinel, beta), (attended, 1 - beta)]``) and gates;
   - ``tape.passing`` for ReLU, tanh and a product with a gate; ``tape.normalised`` for layer normalisation;
   - ``encoded_regions`` for a :class:`~fairseq_grounding.modules.region_encoder.RegionEncoder`.

   It returns a :class:`Replay`. Nodes given as ``global_vector``, ``sentinel`` and ``heads`` say how much passed
   through them.
3. Register it: ``@describes(TheModel)``, and import the module at the end of this one.

Two things watch over a description: modules that it does not name, and the logits that it computes, which must be the
model's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from ...errors import GroundingError
from ...modules.region_encoder import RegionEncoder
from ...modules.regions import with_geometry
from ..tape import Node, Tape

_DESCRIPTIONS: dict[type[nn.Module], type[Architecture]] = {}
Description = TypeVar("Description", bound="type[Architecture]")


@dataclass
class Replay:
    """A forward pass on a tape.

    Attributes:
        outputs: for each explained word, what the vocabulary projection reads (B,O)
        regions: inputs (B,R,.) whose totals add up to the regions' relevance
        words: for each step an input (B,.), the embedding that it read; or one input (B,T,.) with all of them
        global_vector: what stands for the whole image, where there is such a thing
        sentinel: what stands for no region, at each step where it is mixed in
        heads: what the heads of an attention read (B,R,F), in equal parts; the relevance of regions is given for each
        number_of_heads: M
    """

    outputs: Sequence[Node]
    regions: Sequence[Node]
    words: Sequence[Node]
    global_vector: Sequence[Node] = ()
    sentinel: Sequence[Node] = ()
    heads: Sequence[Node] = ()
    number_of_heads: int = field(default=0)


class Architecture:
    """Describes the forward pass of one class of models.

    Attributes:
        layers: name and type of every module without modules of its own; a missing one is allowed. Numbers in lists of
            layers are written ``*``
    """

    layers: ClassVar[Mapping[str, type[nn.Module]]]

    def __init__(self, model: Any):
        self.model = model
        for name, module in model.named_modules():
            rule = self.layers.get(re.sub(r"(?<=\.)\d+(?=\.)", "*", name), self.layers.get(name))
            if next(module.children(), None) is None and type(module) is not rule:
                raise GroundingError(
                    f"lrp: {model_name(model)} has no rule for its layer {name} ({type(module).__name__}); add it to"
                    f" {type(self).__module__}, or choose a method of gradients"
                )

    def replay(self, tape: Tape, net_input: Mapping[str, Tensor], places: Sequence[int]) -> Replay:
        """Write the forward pass on *tape*, for the words at *places* (ascending) of each caption."""
        raise NotImplementedError

    def say(self, tape: Tape, parts: Sequence[Node], carried: Sequence[Tensor]) -> Node:
        """Write the second half of a step on *tape* (:meth:`RecurrentDecoder.say`): what the vocabulary projection
        reads (P,O), of parts (P,.) and of what is carried (P,.). Only ``lrp_inference`` needs it.

        Raises:
            GroundingError: this architecture's steps have no such halves
        """
        raise GroundingError(f"lrp: {model_name(self.model)} has no context that could be re-weighted")

    def projection(self) -> nn.Linear:
        """The layer that gives the logits."""
        return self.model.decoder.output_projection


def describes(model: type[nn.Module]) -> Callable[[Description], Description]:
    """Register a description for a class of models."""

    def register(description: Description) -> Description:
        _DESCRIPTIONS[model] = description
        return description

    return register


def description_of(model: nn.Module) -> Architecture:
    """The description of *model*'s forward pass.

    Raises:
        GroundingError: there is none for its class, or it knows no rule for one of the model's layers
    """
    description = _DESCRIPTIONS.get(type(model))
    if description is None:
        known = ", ".join(sorted(kind.__name__ for kind in _DESCRIPTIONS))
        raise GroundingError(
            f"lrp: there are no rules for the layers of {model_name(model)} ({type(model).__name__}), only for {known};"
            " choose a method of gradients, or ablation"
        )
    return description(model)


def model_name(model: nn.Module) -> str:
    """What users call *model*."""
    return str(getattr(model, "architecture", type(model).__name__))


# the layers that encoded_regions has rules for
REGION_ENCODER: Mapping[str, type[nn.Module]] = {
    "encoder.region_embedding.0": nn.Linear,
    "encoder.region_embedding.1": nn.ReLU,
    "encoder.region_embedding.2": nn.Dropout,
    "encoder.global_embedding.0": nn.Linear,
    "encoder.global_embedding.1": nn.ReLU,
    "encoder.global_embedding.2": nn.Dropout,
    "encoder.key_projection": nn.Linear,
}


def encoded_regions(
    tape: Tape, encoder: RegionEncoder, net_input: Mapping[str, Tensor], mask: Tensor
) -> tuple[Node, Node, list[Node]]:
    """A region encoder on a tape: embedded regions (B,R,H), the global vector (B,H), and the inputs.

    Images are embedded once, as the encoder does. A region's geometry counts as its own.
    """
    image_index = net_input["image_index"]
    features = net_input["features"].index_select(0, image_index)
    embedding: Any = encoder.region_embedding[0]
    read = with_geometry(net_input["features"], net_input["boxes"], encoder.geometry)
    regions = tape.input(read.index_select(0, image_index))
    before = tape.linear(
        "region embedding",
        [(regions, embedding.weight)],
        embedding.bias,
        value=embedding(read).index_select(0, image_index),
        positive=True,
    )
    embedded = tape.passing(before, before.value.relu().masked_fill(~mask[:, :, None], 0.0))
    even = mask.to(features.dtype) / mask.sum(1, keepdim=True)
    if encoder.global_embedding is None:
        return embedded, tape.attend("mean of embedded regions", even, embedded, mask), [regions]
    whole = tape.input(features)
    mean = tape.attend("mean of region features", even, whole, mask)
    layer: Any = encoder.global_embedding[0]
    before = tape.linear("global embedding", [(mean, layer.weight)], layer.bias, positive=True)
    return embedded, tape.passing(before, before.value.relu()), [regions, whole]


def first_word(places: Sequence[int], step: int) -> int:
    """The first of the explained words (their *places* ascending) that *step* can speak for."""
    return sum(place < step for place in places)


from . import adaptive_attention, grounded_transformer, multihead_attention, up_down  # noqa: E402
