"""Adaptive attention: a captioner that may look at what it has said in place of the image."""

from dataclasses import dataclass, field

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models import register_model
from torch import nn

from ..modules.additive_attention import AdaptiveAttention
from ..modules.recurrent_decoder import RecurrentDecoder, gate_layer, lstm_cell
from ..modules.region_captioner import RegionCaptioner, RegionCaptionerConfig
from ..modules.region_encoder import GLOBAL_FEATURES, RegionEncoder
from ..modules.scheduled_sampling import ScheduledSampling


@dataclass
class AdaptiveAttentionConfig(RegionCaptionerConfig):
    attention_size: int = field(default=512, metadata={"help": "units of the additive attention"})
    dropout: float = field(default=0.5, metadata={"help": "before the output"})
    global_feature: ChoiceEnum(GLOBAL_FEATURES) = field(  # type: ignore[valid-type]
        default="raw-mean",
        metadata={
            "help": "the vector that stands for the whole image. raw-mean: the mean raw feature, embedded (the"
            " published code); embedded-mean: the mean of embedded regions"
        },
    )


class AdaptiveAttentionDecoder(RecurrentDecoder):
    """Adaptive LSTM, attention with a visual sentinel, language LSTM: the first captioner that Sun et al. explain
    (arXiv 2001.01037), with the sentinel of Lu et al. (CVPR 2017).

    The adaptive LSTM reads [language state; global vector; word] and has a fifth gate g, which reads the same; the
    sentinel is g tanh(cell). Attention mixes it with the regions, see
    :class:`~fairseq_grounding.modules.additive_attention.AdaptiveAttention`: mixed = beta sentinel + (1 - beta)
    attended. The language LSTM reads [mixed; adaptive state]; words are projected from language state + mixed.

    Beside ``attn`` [(B,T,R)], which is a distribution over the regions alone, it returns ``sentinel`` [(B,T)], beta.
    The published code adds the attention's query to the regions' axis in place of the units'; here it is the equation.
    """

    def __init__(self, cfg: AdaptiveAttentionConfig, dictionary, sampling: ScheduledSampling):
        hidden = cfg.hidden_size
        super().__init__(dictionary, hidden, sampling)
        self.hidden_size = hidden
        self.embedding = nn.Embedding(len(dictionary), cfg.embedding_size)
        self.word_gates = gate_layer(cfg.embedding_size, hidden, bias=False, gates=5)
        self.global_gates = gate_layer(hidden, hidden, gates=5)
        self.state_gates = gate_layer(2 * hidden, hidden, bias=False, gates=5)
        self.attention = AdaptiveAttention(hidden, cfg.attention_size)
        self.language_gates = gate_layer(3 * hidden, hidden)
        self.embedding_dropout = nn.Dropout(cfg.embedding_dropout)
        self.dropout = nn.Dropout(cfg.dropout)

    def prepare(self, tokens, rows, encoder_out):
        words = self.embedding_dropout(self.embedding(tokens))
        return self.word_gates(words) + self.global_gates(encoder_out["global"]).index_select(0, rows)

    def initial_state(self, encoder_out):
        zero = encoder_out["global"].new_zeros(len(encoder_out["global"]), self.hidden_size)
        return zero, zero, zero, zero

    def read(self, inputs, state, encoder_out):
        hidden, cell, language_hidden, language_cell = state
        gates = inputs + self.state_gates(torch.cat([language_hidden, hidden], 1))
        of_lstm, of_sentinel = gates.split([4 * self.hidden_size, self.hidden_size], 1)
        hidden, cell = lstm_cell(of_lstm, cell)
        sentinel = of_sentinel.sigmoid() * cell.tanh()
        mixed, attention, beta = self.attention.attend(
            hidden, sentinel, encoder_out["keys"], encoder_out["values"], encoder_out["mask"]
        )
        gates = self.language_gates(torch.cat([mixed, hidden, language_hidden], 1))
        language_hidden, language_cell = lstm_cell(gates, language_cell)
        state = (hidden, cell, language_hidden, language_cell)
        return (language_hidden, mixed), torch.cat([attention, beta], 1), state

    def say(self, parts, carried):
        language_hidden, mixed = parts
        return self.dropout(language_hidden + mixed), carried

    def shown(self, attention):
        return {"attn": [attention[..., :-1]], "sentinel": [attention[..., -1]]}


@register_model("adaptive_attention", dataclass=AdaptiveAttentionConfig)
class AdaptiveAttentionModel(RegionCaptioner):
    """The captioner with a sentinel: logits, attention and the sentinel's weight for every token, in training too."""

    @classmethod
    def build_model(cls, cfg, task):
        """Build for *task*'s dictionary and region features."""
        feature_size = task.model_feature_size(cfg)
        encoder = RegionEncoder(
            task.target_dictionary,
            feature_size,
            cfg.hidden_size,
            cfg.attention_size,
            str(cfg.region_geometry),
            str(cfg.global_feature),
            cfg.embedding_dropout,
        )
        decoder = AdaptiveAttentionDecoder(cfg, task.target_dictionary, ScheduledSampling(cfg, task))
        return cls(encoder, decoder, task.target_dictionary, feature_size)
