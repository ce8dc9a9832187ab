"""fairseq's transformer as a captioner: regions are its source, one layer's attention to them is its grounding."""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import FairseqEncoder, register_model
from fairseq.models.transformer import Embedding, TransformerConfig, TransformerDecoderBase
from fairseq.models.transformer.transformer_config import DecoderConfig, EncDecBaseConfig, QuantNoiseConfig
from fairseq.modules import LayerNorm
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor, nn

from ..errors import GroundingError
from ..modules.region_captioner import RegionCaptioner
from ..modules.regions import GEOMETRY_SIZE, image_region_mask, with_geometry

EncoderOut = Dict[str, List[Tensor]]


@dataclass
class GroundedTransformerConfig(FairseqDataclass):
    feature_size: Optional[int] = field(
        default=None, metadata={"help": "width of a region's feature (default: that of the region store)"}
    )
    embedding_size: int = field(default=512, metadata={"help": "width of words, regions and all layers"})
    ffn_size: int = field(default=2048, metadata={"help": "width of the feed-forward part of each layer"})
    attention_heads: int = field(default=8, metadata={"help": "heads of each attention; divides --embedding-size"})
    encoder_layers: int = field(
        default=3, metadata={"help": "layers in which regions attend to each other; 0: regions are embedded only"}
    )
    decoder_layers: int = field(default=3, metadata={"help": "layers over words, each attending to regions"})
    alignment_layer: int = field(
        default=-1,
        metadata={
            "help": "the decoder layer whose attention to regions is the captioner's grounding: taught, dumped and"
            " printed; from 0 at the words, or from -1 at the output"
        },
    )
    alignment_heads: Optional[int] = field(
        default=None, metadata={"help": "the grounding is the mean of that layer's first N heads (default: all)"}
    )
    dropout: float = field(default=0.1, metadata={"help": "after embeddings and after each part of a layer"})
    attention_dropout: float = field(
        default=0.0, metadata={"help": "of attention weights; the grounding is read before it"}
    )
    activation_dropout: float = field(default=0.0, metadata={"help": "inside the feed-forward parts"})
    normalize_before: bool = field(
        default=False, metadata={"help": "layer norm before each part of a layer (default: after it)"}
    )
    share_embeddings: bool = field(
        default=False, metadata={"help": "words have the same vectors at input and at output"}
    )
    region_geometry: ChoiceEnum(list(GEOMETRY_SIZE)) = field(  # type: ignore[valid-type]
        default="none", metadata={"help": "box5 appends x0 y0 x1 y1 and area, relative to the image, to the features"}
    )


class RegionTransformerEncoder(FairseqEncoder):
    """Embeds regions (linear, layer norm, dropout) and lets them attend to each other, once an image.

    Regions are a set: they have no positions but their boxes.

    Args:
        dictionary: for the padding symbol
        feature_size: D
        cfg: of fairseq's layers
        geometry: ``none`` or ``box5``
    """

    def __init__(self, dictionary, feature_size: int, cfg: TransformerConfig, geometry: str):
        super().__init__(dictionary)
        self.geometry = geometry
        width = cfg.encoder.embed_dim
        self.region_embedding = nn.Linear(feature_size + GEOMETRY_SIZE[geometry], width)
        self.embedding_norm = LayerNorm(width)
        self.dropout = nn.Dropout(cfg.dropout)
        self.layers = nn.ModuleList(TransformerEncoderLayerBase(cfg) for _ in range(cfg.encoder.layers))
        self.final_norm = LayerNorm(width) if cfg.encoder.normalize_before else None

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        features: Tensor,
        boxes: Tensor,
        image_index: Tensor,
        **unused: Any,
    ) -> EncoderOut:
        """Encode a batch of I images for its B captions.

        Args:
            src_tokens: (B,R), padding where a region is not real; src_lengths: (B,)
            features: (I,R,D); boxes: (I,R,4) relative to the image; image_index: (B,)

        Returns:
            what fairseq's decoder reads: ``encoder_out`` [(R,B,H)], ``encoder_padding_mask`` [(B,R)] True = padding
        """
        pad = self.dictionary.pad()
        padding = ~image_region_mask(src_tokens, image_index, len(features), pad)
        embedded = self.embedding_norm(self.region_embedding(with_geometry(features, boxes, self.geometry)))
        hidden = self.dropout(embedded).masked_fill(padding[:, :, None], 0.0).transpose(0, 1)
        for layer in self.layers:
            hidden = layer(hidden, padding)
        if self.final_norm is not None:
            hidden = self.final_norm(hidden)
        return {
            "encoder_out": [hidden.index_select(1, image_index)],
            "encoder_padding_mask": [src_tokens.eq(pad)],
        }

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Rows in another order, as beam search wants them."""
        return {
            "encoder_out": [tensor.index_select(1, new_order) for tensor in encoder_out["encoder_out"]],
            "encoder_padding_mask": [mask.index_select(0, new_order) for mask in encoder_out["encoder_padding_mask"]],
        }

    def max_positions(self) -> None:
        """No limit of its own."""
        return None


class GroundedTransformerDecoder(TransformerDecoderBase):
    """fairseq's transformer decoder; its attention to regions is that of one layer, in training as in decoding.

    The attention of a word is the mean over heads of softmax(query . key / sqrt(head size)) over regions, as in
    Garg et al., EMNLP 2019, section 4; it is read before dropout.

    Args:
        cfg: of fairseq's layers
        dictionary: the captions'
        alignment_layer: from 0 at the words
        alignment_heads: how many heads count, the first ones; None: all
    """

    def __init__(self, cfg: TransformerConfig, dictionary, alignment_layer: int, alignment_heads: Optional[int]):
        super().__init__(cfg, dictionary, Embedding(len(dictionary), cfg.decoder.embed_dim, dictionary.pad()))
        self.alignment_layer = alignment_layer
        self.alignment_heads = alignment_heads

    def forward(self, prev_output_tokens, encoder_out=None, incremental_state=None, features_only=False, **unused):
        """Logits (B,T,V) and ``{"attn": [attention (B,T,R)]}``, the latter 0 at padding; with *incremental_state* of
        the last token only."""
        output, extra = super().forward(
            prev_output_tokens,
            encoder_out,
            incremental_state,
            features_only,
            alignment_layer=self.alignment_layer,
            alignment_heads=self.alignment_heads,
        )
        (attention,) = extra["attn"]
        padding = prev_output_tokens[:, -output.shape[1] :].eq(self.padding_idx)
        return output, {"attn": [attention.masked_fill(padding[:, :, None], 0.0)]}

    def set_beam_size(self, beam_size: int) -> None:
        """Nothing, on purpose.

        fairseq's generator would tell the attention, for good, that each *beam_size* rows are of one source. The same
        model reads batches of other kinds: in training after it sampled, or from a second generator.
        """


def _transformer_config(cfg: GroundedTransformerConfig) -> TransformerConfig:
    """fairseq's nested configuration of both stacks."""
    stack = {
        "embed_dim": cfg.embedding_size,
        "ffn_embed_dim": cfg.ffn_size,
        "attention_heads": cfg.attention_heads,
        "normalize_before": cfg.normalize_before,
    }
    # some builds of fairseq have classes, not instances, as the defaults of these three
    return TransformerConfig(
        encoder=EncDecBaseConfig(layers=cfg.encoder_layers, **stack),
        decoder=DecoderConfig(layers=cfg.decoder_layers, **stack),
        quant_noise=QuantNoiseConfig(),
        dropout=cfg.dropout,
        attention_dropout=cfg.attention_dropout,
        activation_dropout=cfg.activation_dropout,
        share_decoder_input_output_embed=cfg.share_embeddings,
    )


def _check(cfg: GroundedTransformerConfig) -> None:
    least = {"embedding_size": 1, "ffn_size": 1, "attention_heads": 1, "encoder_layers": 0, "decoder_layers": 1}
    for name, minimum in least.items():
        if getattr(cfg, name) < minimum:
            raise GroundingError(f"--{name.replace('_', '-')} {getattr(cfg, name)}: give at least {minimum}")
    layers, heads = cfg.decoder_layers, cfg.attention_heads
    if cfg.embedding_size % heads:
        raise GroundingError(f"--attention-heads {heads}: must divide --embedding-size {cfg.embedding_size}")
    if not -layers <= cfg.alignment_layer < layers:
        raise GroundingError(
            f"--alignment-layer {cfg.alignment_layer}: the decoder has {layers}; give {-layers} to {layers - 1}"
        )
    if cfg.alignment_heads is not None and not 1 <= cfg.alignment_heads <= heads:
        raise GroundingError(f"--alignment-heads {cfg.alignment_heads}: give 1 to {heads}, the number of heads")


@register_model("grounded_transformer", dataclass=GroundedTransformerConfig)
class GroundedTransformerModel(RegionCaptioner):
    """A transformer captioner: logits and attention for every token, in training too."""

    region_weight = "encoder.region_embedding.weight"

    @classmethod
    def build_model(cls, cfg, task):
        """Build for *task*'s dictionary and region features."""
        _check(cfg)
        dictionary, feature_size = task.target_dictionary, task.model_feature_size(cfg)
        layers = _transformer_config(cfg)
        encoder = RegionTransformerEncoder(dictionary, feature_size, layers, str(cfg.region_geometry))
        alignment_layer = cfg.alignment_layer % cfg.decoder_layers
        decoder = GroundedTransformerDecoder(layers, dictionary, alignment_layer, cfg.alignment_heads)
        return cls(encoder, decoder, dictionary, feature_size)
