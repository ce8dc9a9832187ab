"""The multimodal RNN: a captioner without attention that sees its image, or one region of it, as a single vector."""

from dataclasses import dataclass, field
from typing import Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import FairseqEncoder, register_model
from torch import nn
from torch.nn import functional as F

from ..errors import GroundingError
from ..modules.recurrent_decoder import RecurrentDecoder, gate_layer, lstm_cell
from ..modules.region_captioner import RegionCaptioner
from ..modules.region_encoder import RegionEncoder
from ..modules.regions import image_region_mask, mean_region, whole_image

CELLS = ("relu", "lstm")
IMAGE_VECTORS = ("whole", "mean", "region")
IMAGE_CONTEXTS = ("none", "concat")
IMAGE_STEPS = ("first", "all")


@dataclass
class MultimodalRnnConfig(FairseqDataclass):
    feature_size: Optional[int] = field(
        default=None, metadata={"help": "width of a region's feature (default: that of the region store)"}
    )
    embedding_size: int = field(default=300, metadata={"help": "width of a word's embedding"})
    hidden_size: int = field(default=512, metadata={"help": "units of the recurrent layer"})
    cell: ChoiceEnum(CELLS) = field(  # type: ignore[valid-type]
        default="relu", metadata={"help": "the recurrent layer: relu, as in the paper, or lstm"}
    )
    dropout: float = field(
        default=0.5, metadata={"help": "of word embeddings, of the image's vector and before the output"}
    )
    image_vector: ChoiceEnum(IMAGE_VECTORS) = field(  # type: ignore[valid-type]
        default="whole",
        metadata={
            "help": "the vector that is described. whole: the region that covers the image, or the mean of all where"
            " none does; mean: the mean of all regions; region: the first region, for snippets of align"
            " --export-snippets"
        },
    )
    image_context: ChoiceEnum(IMAGE_CONTEXTS) = field(  # type: ignore[valid-type]
        default="none",
        metadata={"help": "concat: append the vector of the whole image to that of the region (--image-vector region)"},
    )
    image_steps: ChoiceEnum(IMAGE_STEPS) = field(  # type: ignore[valid-type]
        default="first",
        metadata={"help": "when the image is read: at the first step only (the paper), or at all steps (its code)"},
    )
    linear_inputs: bool = field(
        default=False,
        metadata={"help": "no ReLU on projected words and image; the paper found it to help"},
    )


class ImageVectorEncoder(FairseqEncoder):
    """One vector an image, projected to the recurrent layer's width.

    Args:
        dictionary: for the padding symbol
        feature_size: D
        hidden_size: H
        vector: ``whole``, ``mean`` or ``region``, see :class:`MultimodalRnnConfig`
        context: ``none``, or ``concat``: the region's vector and the whole image's, in this order
        linear: no ReLU after the projection
        dropout: after it
    """

    def __init__(
        self,
        dictionary,
        feature_size: int,
        hidden_size: int,
        vector: str = "whole",
        context: str = "none",
        linear: bool = False,
        dropout: float = 0.5,
    ):
        super().__init__(dictionary)
        if context == "concat" and vector != "region":
            raise GroundingError(
                f"--image-context concat: --image-vector {vector} is the whole image already; give --image-vector"
                " region"
            )
        self.vector, self.context, self.linear = vector, context, linear
        self.projection = nn.Linear(feature_size * (2 if context == "concat" else 1), hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, src_tokens, src_lengths, features, boxes, image_index, **unused):
        """Encode a batch of I images for its B captions.

        Args:
            src_tokens: (B,R), padding where a region is not real; src_lengths: (B,)
            features: (I,R,D); boxes: (I,R,4) relative to the image; image_index: (B,)

        Returns:
            ``image`` (B,H)
        """
        mask = image_region_mask(src_tokens, image_index, len(features), self.dictionary.pad())
        vectors = features[:, 0]
        if self.vector == "mean":
            vectors = mean_region(features, mask)
        elif self.vector == "whole":
            vectors = whole_image(features, boxes, mask)
        if self.context == "concat":
            vectors = torch.cat([vectors, whole_image(features, boxes, mask)], 1)
        projected = self.projection(vectors)
        projected = self.dropout(projected if self.linear else projected.relu())
        return {"image": projected.index_select(0, image_index)}

    reorder_encoder_out = RegionEncoder.reorder_encoder_out
    max_positions = RegionEncoder.max_positions


class MultimodalRnnDecoder(RecurrentDecoder):
    """h_t = f(W_hx x_t + W_hh h_{t-1} + b_h + 1(t=1) b_v), y_t = W_oh h_t + b_o (Karpathy and Fei-Fei, CVPR 2015,
    section 3.2), f a ReLU or an LSTM cell.

    The words' and the image's part go through a ReLU each, unless *cfg* says ``linear_inputs``; an LSTM's gates
    read their sum. While the image is still to be read it is the last part of the state.
    """

    def __init__(self, cfg: MultimodalRnnConfig, dictionary):
        super().__init__(dictionary, cfg.hidden_size)
        hidden = cfg.hidden_size
        self.hidden_size, self.linear = hidden, cfg.linear_inputs
        self.every_step = str(cfg.image_steps) == "all"
        self.embedding = nn.Embedding(len(dictionary), cfg.embedding_size)
        self.word_projection = nn.Linear(cfg.embedding_size, hidden)
        self.gates = gate_layer(hidden, hidden) if str(cfg.cell) == "lstm" else None
        if self.gates is None:
            self.recurrent = nn.Linear(hidden, hidden)
            # a ReLU step with an orthogonal matrix lengthens neither states nor gradients
            nn.init.orthogonal_(self.recurrent.weight)
            nn.init.zeros_(self.recurrent.bias)
        else:
            self.recurrent = gate_layer(hidden, hidden, bias=False)
        self.dropout = nn.Dropout(cfg.dropout)

    def prepare(self, tokens, rows, encoder_out):
        words = self.word_projection(self.dropout(self.embedding(tokens)))
        words = words if self.linear else words.relu()
        return words if self.gates is None else self.gates(words)

    def initial_state(self, encoder_out):
        image = encoder_out["image"]
        zero = image.new_zeros(len(image), self.hidden_size)
        if self.gates is None:
            return zero, image
        return zero, zero, F.linear(image, self.gates.weight)

    def step(self, inputs, state, encoder_out):
        hidden, *rest = state
        cell = None if self.gates is None else rest.pop(0)
        summed = sum(rest, inputs + self.recurrent(hidden))
        kept = tuple(rest) if self.every_step else ()
        if cell is None:
            hidden = summed.relu()
            return self.dropout(hidden), None, (hidden, *kept)
        hidden, cell = lstm_cell(summed, cell)
        return self.dropout(hidden), None, (hidden, cell, *kept)


def log_frequencies(dictionary, captions: int, unknown: int) -> torch.Tensor:
    """The logarithm of each symbol's share of the training tokens, (V,).

    Args:
        dictionary: with the counts of its words
        captions: training captions, each of which has one end symbol
        unknown: training words that the dictionary lacks

    What was never seen counts as seen once: the padding, and with a dictionary without counts every word alike.
    """
    counts = torch.tensor(dictionary.count, dtype=torch.float64)
    counts[: dictionary.nspecial] = 0
    counts[dictionary.eos()], counts[dictionary.unk()] = captions, unknown
    counts.clamp_(min=1)
    return (counts / counts.sum()).log()


@register_model("multimodal_rnn", dataclass=MultimodalRnnConfig)
class MultimodalRnnModel(RegionCaptioner):
    """The generator of DVSA (Karpathy and Fei-Fei, CVPR 2015): logits for every token, and no attention.

    ``attends`` False says so to the task; ``describes_region`` that its first region is what it describes.
    """

    region_weight = "encoder.projection.weight"
    attends = False

    def __init__(self, encoder, decoder, dictionary, feature_size: int):
        super().__init__(encoder, decoder, dictionary, feature_size)
        self.describes_region = encoder.vector == "region"

    @classmethod
    def build_model(cls, cfg, task):
        """Build for *task*'s dictionary and region features; where it has a prepared folder, the output starts from
        the words' frequencies in it."""
        dictionary, feature_size = task.target_dictionary, task.model_feature_size(cfg)
        encoder = ImageVectorEncoder(
            dictionary,
            feature_size,
            cfg.hidden_size,
            str(cfg.image_vector),
            str(cfg.image_context),
            cfg.linear_inputs,
            cfg.dropout,
        )
        decoder = MultimodalRnnDecoder(cfg, dictionary)
        folder = getattr(task, "folder", None)
        if folder is not None:
            meta = folder.meta
            captions = meta["splits"].get("train", {}).get("captions", 0)
            unknown = round(meta.get("train_words", 0) * (1 - meta.get("train_word_coverage", 1)))
            with torch.no_grad():
                decoder.output_projection.bias.copy_(log_frequencies(dictionary, captions, unknown))
        return cls(encoder, decoder, dictionary, feature_size)
