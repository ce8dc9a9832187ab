"""The transformer captioner's forward pass for relevance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor, nn
from torch.nn import functional as F

from ...errors import GroundingError
from ...models.grounded_transformer import GroundedTransformerModel
from ...modules.regions import with_geometry
from ..tape import Node, Tape
from . import Architecture, Replay, describes, first_word

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


def _layer(stack: str, *attentions: str) -> dict[str, type[nn.Module]]:
    own: dict[str, type[nn.Module]] = {
        "dropout_module": FairseqDropout,
        "activation_dropout_module": FairseqDropout,
        "fc1": nn.Linear,
        "fc2": nn.Linear,
        "final_layer_norm": nn.LayerNorm,
    }
    for attention in attentions:
        own[f"{attention}.dropout_module"] = FairseqDropout
        own[f"{attention}_layer_norm"] = nn.LayerNorm
        own.update({f"{attention}.{name}": nn.Linear for name in _PROJECTIONS})
    return {f"{stack}.layers.*.{name}": kind for name, kind in own.items()}


@describes(GroundedTransformerModel)
class GroundedTransformer(Architecture):
    """Relevance goes through values, feed-forward parts and residuals. Attention weights and the deviations of layer
    norms are constants (as in Ali et al., ICML 2022); positions are nobody's and keep their part like biases.
    """

    layers: ClassVar[Mapping[str, type[nn.Module]]] = {
        "encoder.region_embedding": nn.Linear,
        "encoder.embedding_norm": nn.LayerNorm,
        "encoder.dropout": nn.Dropout,
        "encoder.final_norm": nn.LayerNorm,
        # where the encoder has no layers
        "encoder.layers": nn.ModuleList,
        **_layer("encoder", "self_attn"),
        "decoder.dropout_module": FairseqDropout,
        "decoder.embed_tokens": nn.Embedding,
        "decoder.embed_positions": SinusoidalPositionalEmbedding,
        "decoder.layer_norm": nn.LayerNorm,
        "decoder.output_projection": nn.Linear,
        **_layer("decoder", "self_attn", "encoder_attn"),
    }

    def __init__(self, model: Any):
        super().__init__(model)
        for layer in [*model.encoder.layers, *model.decoder.layers]:
            if layer.activation_fn is not F.relu and getattr(layer.activation_fn, "__name__", "") != "relu":
                raise GroundingError("lrp: grounded_transformer has rules for ReLU alone in its feed-forward parts")

    def replay(self, tape: Tape, net_input: Mapping[str, Tensor], places: Sequence[int]) -> Replay:
        encoder, decoder = self.model.encoder, self.model.decoder
        pad = decoder.dictionary.pad()
        mask = net_input["src_tokens"].ne(pad)
        read = with_geometry(net_input["features"], net_input["boxes"], encoder.geometry)
        regions = tape.input(read.index_select(0, net_input["image_index"]))
        embedding = encoder.region_embedding
        hidden = tape.linear("region embedding", [(regions, embedding.weight)], embedding.bias, positive=True)
        hidden = _norm(tape, "region embedding: norm", hidden, encoder.embedding_norm)
        for number, layer in enumerate(encoder.layers):
            name = f"encoder layer {number}"
            hidden = _attention(tape, f"{name}: attention", hidden, hidden, mask, layer, "self_attn")
            hidden = _feed_forward(tape, name, hidden, layer)
        if encoder.final_norm is not None:
            hidden = _norm(tape, "encoder: norm", hidden, encoder.final_norm)

        tokens = net_input["prev_output_tokens"][:, : places[-1] + 1]
        words = tape.input(decoder.embed_scale * decoder.embed_tokens(tokens))
        spoken = tape.weighted("positions", [(words, 1.0)], decoder.embed_positions(tokens))
        steps = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=tokens.device).tril()
        earlier = steps & tokens.ne(pad)[:, None]
        for number, layer in enumerate(decoder.layers):
            name = f"decoder layer {number}"
            spoken = _attention(tape, f"{name}: attention to words", spoken, spoken, earlier, layer, "self_attn")
            spoken = _attention(tape, f"{name}: attention to regions", spoken, hidden, mask, layer, "encoder_attn")
            spoken = _feed_forward(tape, name, spoken, layer)
        if decoder.layer_norm is not None:
            spoken = _norm(tape, "decoder: norm", spoken, decoder.layer_norm)
        return Replay(
            outputs=[tape.row(spoken, place, first_word(places, place)) for place in places],
            regions=[regions],
            words=[words],
        )


def _norm(tape: Tape, name: str, node: Node, norm: nn.LayerNorm) -> Node:
    return tape.normalised(name, node, norm.weight, norm.bias, norm.eps)


def _attention(tape: Tape, name: str, node: Node, source: Node, mask: Tensor, layer: Any, kind: str) -> Node:
    """A part of a layer that attends from *node* to *source*, with residual and norm."""
    attention, norm = getattr(layer, kind), getattr(layer, f"{kind}_layer_norm")
    before = _norm(tape, f"{name}: norm", node, norm) if layer.normalize_before else node
    # a decoder's regions are normalised already
    seen = before if source is node else source
    heads = attention.num_heads
    queries, keys = (
        projection(part.value).unflatten(-1, (heads, -1)).transpose(1, 2)
        for projection, part in ((attention.q_proj, before), (attention.k_proj, seen))
    )
    fits = queries @ keys.transpose(2, 3) * attention.scaling
    allowed = (mask[:, None] if mask.dim() == 2 else mask)[:, None]
    # fairseq's own attention to regions is in single precision at most
    kind_of_number = torch.float32 if kind == "encoder_attn" else fits.dtype
    weights = fits.masked_fill(~allowed, -torch.inf).softmax(-1, dtype=kind_of_number).to(fits.dtype)
    # a row that may look at nothing is padding
    weights = weights.nan_to_num(0.0)
    values = tape.linear(f"{name}: values", [(seen, attention.v_proj.weight)], attention.v_proj.bias)
    mixed = tape.attend(name, weights, values, mask, heads)
    output = tape.linear(f"{name}: output", [(mixed, attention.out_proj.weight)], attention.out_proj.bias)
    total = tape.weighted(f"{name}: residual", [(node, 1.0), (output, 1.0)])
    return total if layer.normalize_before else _norm(tape, f"{name}: norm", total, norm)


def _feed_forward(tape: Tape, name: str, node: Node, layer: Any) -> Node:
    norm = layer.final_layer_norm
    before = _norm(tape, f"{name}: norm", node, norm) if layer.normalize_before else node
    wide = tape.linear(f"{name}: feed-forward in", [(before, layer.fc1.weight)], layer.fc1.bias)
    wide = tape.passing(wide, wide.value.relu())
    narrow = tape.linear(f"{name}: feed-forward out", [(wide, layer.fc2.weight)], layer.fc2.bias)
    total = tape.weighted(f"{name}: residual", [(node, 1.0), (narrow, 1.0)])
    return total if layer.normalize_before else _norm(tape, f"{name}: norm", total, norm)
