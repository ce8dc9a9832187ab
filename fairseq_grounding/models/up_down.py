"""Up-Down, the captioner whose attention is taught: two LSTMs with additive attention over regions between them."""

from dataclasses import dataclass, field
from typing import Optional

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models import register_model, register_model_architecture
from torch import nn

from ..modules.additive_attention import AdditiveAttention
from ..modules.recurrent_decoder import RecurrentDecoder, gate_layer, lstm_cell
from ..modules.region_captioner import RegionCaptioner
from ..modules.region_encoder import GLOBAL_FEATURES, RegionEncoder
from ..modules.regions import GEOMETRY_SIZE
from ..modules.scheduled_sampling import ScheduledSampling, ScheduledSamplingConfig


@dataclass
class UpDownConfig(ScheduledSamplingConfig):
    feature_size: Optional[int] = field(
        default=None, metadata={"help": "width of a region's feature (default: that of the region store)"}
    )
    embedding_size: int = field(default=512, metadata={"help": "width of embedded words"})
    region_size: Optional[int] = field(
        default=None,
        metadata={
            "help": "width of embedded regions and of the global vector (default: --embedding-size; up_down_coco: 1024)"
        },
    )
    hidden_size: Optional[int] = field(
        default=None, metadata={"help": "units of each LSTM (default: 512; up_down_coco: 1024)"}
    )
    attention_size: int = field(default=512, metadata={"help": "units of the additive attention"})
    dropout: float = field(
        default=0.5,
        metadata={"help": "after each embedding (words, regions, global vector) and before the output"},
    )
    region_geometry: ChoiceEnum(list(GEOMETRY_SIZE)) = field(  # type: ignore[valid-type]
        default="none", metadata={"help": "box5 appends x0 y0 x1 y1 and area, relative to the image, to the features"}
    )
    global_feature: ChoiceEnum(GLOBAL_FEATURES) = field(  # type: ignore[valid-type]
        default="raw-mean",
        metadata={
            "help": "the vector that stands for the whole image. raw-mean: the mean raw feature, embedded (the"
            " published code); embedded-mean: the mean of embedded regions (the printed equation)"
        },
    )


class UpDownDecoder(RecurrentDecoder):
    """Attention LSTM, additive attention, language LSTM (Anderson et al., CVPR 2018, section 3.2).

    The attention LSTM reads [language state; global vector; word], the language LSTM [attended regions; attention
    state]; both start from zeros. Words are embedded with ReLU and dropout, as the POS-SCAN code runs it.
    """

    def __init__(self, cfg: UpDownConfig, dictionary, sampling: Optional[ScheduledSampling] = None):
        hidden, width, words = cfg.hidden_size or 512, _region_size(cfg), cfg.embedding_size
        super().__init__(dictionary, hidden, sampling)
        self.hidden_size = hidden
        self.embedding = nn.Embedding(len(dictionary), words)
        self.word_gates = gate_layer(words, hidden, bias=False)
        self.global_gates = gate_layer(width, hidden)
        self.attention_gates = gate_layer(2 * hidden, hidden, bias=False)
        self.attention = AdditiveAttention(hidden, cfg.attention_size)
        self.language_gates = gate_layer(width + 2 * hidden, hidden)
        self.dropout = nn.Dropout(cfg.dropout)

    def prepare(self, tokens, rows, encoder_out):
        words = self.dropout(self.embedding(tokens).relu())
        return self.word_gates(words) + self.global_gates(encoder_out["global"]).index_select(0, rows)

    def initial_state(self, encoder_out):
        zero = encoder_out["global"].new_zeros(len(encoder_out["global"]), self.hidden_size)
        return zero, zero, zero, zero

    def read(self, inputs, state, encoder_out):
        attention_hidden, attention_cell, language_hidden, language_cell = state
        gates = inputs + self.attention_gates(torch.cat([language_hidden, attention_hidden], 1))
        attention_hidden, attention_cell = lstm_cell(gates, attention_cell)
        attended, attention = self.attention(
            attention_hidden, encoder_out["keys"], encoder_out["values"], encoder_out["mask"]
        )
        return (
            (attended, attention_hidden),
            attention,
            (attention_cell, language_hidden, language_cell, attention_hidden),
        )

    def say(self, parts, carried):
        attended, attention_hidden = parts
        attention_cell, language_hidden, language_cell, attention_state = carried
        gates = self.language_gates(torch.cat([attended, attention_hidden, language_hidden], 1))
        language_hidden, language_cell = lstm_cell(gates, language_cell)
        state = (attention_state, attention_cell, language_hidden, language_cell)
        return self.dropout(language_hidden), state


@register_model("up_down", dataclass=UpDownConfig)
class UpDownModel(RegionCaptioner):
    """The Up-Down captioner: logits and attention for every token, in training too."""

    @classmethod
    def build_model(cls, cfg, task):
        """Build for *task*'s dictionary and region features."""
        feature_size = task.model_feature_size(cfg)
        encoder = RegionEncoder(
            task.target_dictionary,
            feature_size,
            _region_size(cfg),
            cfg.attention_size,
            str(cfg.region_geometry),
            str(cfg.global_feature),
            cfg.dropout,
        )
        decoder = UpDownDecoder(cfg, task.target_dictionary, ScheduledSampling(cfg, task))
        return cls(encoder, decoder, task.target_dictionary, feature_size)


def _region_size(cfg: UpDownConfig) -> int:
    return cfg.region_size or cfg.embedding_size


@register_model_architecture("up_down", "up_down_coco")
def up_down_coco(cfg):
    """Up-Down at the size of the published COCO run: all but words and attention twice as wide."""
    for name in ("region_size", "hidden_size"):
        if getattr(cfg, name, None) is None:
            setattr(cfg, name, 1024)
