"""Multi-head attention: a captioner of one LSTM whose state asks several heads at once about the regions."""

from dataclasses import dataclass, field

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models import register_model
from torch import nn

from ..errors import GroundingError
from ..modules.recurrent_decoder import RecurrentDecoder, gate_layer, lstm_cell
from ..modules.region_captioner import RegionCaptioner, RegionCaptionerConfig
from ..modules.region_encoder import GLOBAL_FEATURES, RegionEncoder
from ..modules.scheduled_sampling import ScheduledSampling


@dataclass
class MultiheadAttentionConfig(RegionCaptionerConfig):
    attention_heads: int = field(default=8, metadata={"help": "heads of the attention; divides --hidden-size"})
    dropout: float = field(default=0.3, metadata={"help": "before the output"})
    attention_dropout: float = field(
        default=0.1, metadata={"help": "of attention weights; the grounding is read before it"}
    )
    global_feature: ChoiceEnum(GLOBAL_FEATURES) = field(  # type: ignore[valid-type]
        default="embedded-mean",
        metadata={
            "help": "the vector that stands for the whole image. embedded-mean: the mean of embedded regions (the"
            " published code); raw-mean: the mean raw feature, embedded"
        },
    )


class MultiheadRegionEncoder(RegionEncoder):
    """A region encoder whose projection is both: keys in its first half, values in its second, for all heads."""

    def __init__(self, dictionary, feature_size: int, cfg: MultiheadAttentionConfig):
        super().__init__(
            dictionary,
            feature_size,
            cfg.hidden_size,
            2 * cfg.hidden_size,
            str(cfg.region_geometry),
            str(cfg.global_feature),
            cfg.embedding_dropout,
        )
        self.heads = cfg.attention_heads

    def readable(self, values, real):
        """``keys`` and ``values`` (I,M,R,F), each head's F features together, which is how every step reads them."""
        both = self.key_projection(values).masked_fill(~real, 0.0)
        keys, values = both.unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return {"keys": keys.contiguous(), "values": values.contiguous()}


class MultiheadAttentionDecoder(RecurrentDecoder):
    """Language LSTM, scaled dot-product attention of several heads, gated output: the second captioner that Sun et al.
    explain (arXiv 2001.01037).

    The LSTM reads [word; global vector]. Its state h is the query, a part of it for each head; a head's context is
    softmax(h_m . key / sqrt(F)) over regions times its values. Words are projected from h + sigmoid(G h) (C context).

    Beside ``attn`` [(B,T,R)], the mean over heads, it returns ``heads`` [(B,T,M,R)]. Both are read before the
    attention's dropout.
    """

    def __init__(self, cfg: MultiheadAttentionConfig, dictionary, sampling: ScheduledSampling):
        hidden = cfg.hidden_size
        super().__init__(dictionary, hidden, sampling)
        self.hidden_size, self.heads = hidden, cfg.attention_heads
        self.embedding = nn.Embedding(len(dictionary), cfg.embedding_size)
        self.word_gates = gate_layer(cfg.embedding_size, hidden, bias=False)
        self.global_gates = gate_layer(hidden, hidden)
        self.state_gates = gate_layer(hidden, hidden, bias=False)
        self.context_projection = nn.Linear(hidden, hidden)
        self.context_gate = nn.Linear(hidden, hidden)
        self.embedding_dropout = nn.Dropout(cfg.embedding_dropout)
        self.attention_dropout = nn.Dropout(cfg.attention_dropout)
        self.dropout = nn.Dropout(cfg.dropout)

    def prepare(self, tokens, rows, encoder_out):
        words = self.embedding_dropout(self.embedding(tokens))
        return self.word_gates(words) + self.global_gates(encoder_out["global"]).index_select(0, rows)

    def initial_state(self, encoder_out):
        zero = encoder_out["global"].new_zeros(len(encoder_out["global"]), self.hidden_size)
        return zero, zero

    def attend(self, hidden, keys, mask):
        """Each head's attention: hidden (N,H), keys (N,M,R,F), mask (N,R) True = real -> (N,M,R), else exactly 0."""
        queries = hidden.unflatten(1, (self.heads, -1)) * keys.shape[-1] ** -0.5
        logits = torch.matmul(keys, queries[..., None]).squeeze(-1)
        return logits.masked_fill(~mask[:, None], torch.finfo(logits.dtype).min).softmax(-1)

    def read(self, inputs, state, encoder_out):
        hidden, cell = lstm_cell(inputs + self.state_gates(state[0]), state[1])
        attention = self.attend(hidden, encoder_out["keys"], encoder_out["mask"])
        context = torch.matmul(self.attention_dropout(attention)[:, :, None], encoder_out["values"]).flatten(1)
        gated = self.context_gate(hidden).sigmoid() * self.context_projection(context)
        return (hidden, gated), attention.flatten(1), (hidden, cell)

    def say(self, parts, carried):
        hidden, gated = parts
        return self.dropout(hidden + gated), carried

    def shown(self, attention):
        heads = attention.unflatten(-1, (self.heads, -1))
        return {"attn": [heads.mean(2)], "heads": [heads]}


@register_model("multihead_attention", dataclass=MultiheadAttentionConfig)
class MultiheadAttentionModel(RegionCaptioner):
    """The captioner of several heads: logits, their mean attention and each head's for every token, in training too."""

    @classmethod
    def build_model(cls, cfg, task):
        """Build for *task*'s dictionary and region features.

        Raises:
            GroundingError: the heads do not divide the units
        """
        if cfg.hidden_size % cfg.attention_heads:
            raise GroundingError(
                f"--attention-heads {cfg.attention_heads}: must divide --hidden-size {cfg.hidden_size}"
            )
        feature_size = task.model_feature_size(cfg)
        encoder = MultiheadRegionEncoder(task.target_dictionary, feature_size, cfg)
        decoder = MultiheadAttentionDecoder(cfg, task.target_dictionary, ScheduledSampling(cfg, task))
        return cls(encoder, decoder, task.target_dictionary, feature_size)
