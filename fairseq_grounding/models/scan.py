"""SCAN and POS-SCAN: image-text matching by cross attention between regions and words."""

from dataclasses import dataclass, field
from typing import Any, Dict, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import register_model, register_model_architecture
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..data.nouns import check_pos, words_of_pos
from ..errors import GroundingError
from ..modules.cross_attention import AGGREGATES, DIRECTIONS, NORMS, l2_normalise, pair_scores, region_word_scores
from ..modules.matching import Encoded, MatchingModel
from ..modules.regions import GEOMETRY_SIZE, with_geometry


@dataclass
class ScanConfig(FairseqDataclass):
    feature_size: Optional[int] = field(
        default=None, metadata={"help": "width of a region's feature (default: that of the region store)"}
    )
    word_embedding_size: int = field(default=300, metadata={"help": "width of a word's embedding"})
    joint_size: int = field(default=1024, metadata={"help": "width of the space that regions and words share"})
    direction: ChoiceEnum(DIRECTIONS) = field(  # type: ignore[valid-type]
        default="t2i", metadata={"help": "t2i: words attend to regions; i2t: regions attend to words"}
    )
    norm: ChoiceEnum(NORMS) = field(  # type: ignore[valid-type]
        default="clipped_l2",
        metadata={
            "help": "how similarities are normalised over the attending side before the softmax; clipped_l2 is"
            " the published code's, paper the printed equation"
        },
    )
    aggregate: ChoiceEnum(AGGREGATES) = field(  # type: ignore[valid-type]
        default="mean", metadata={"help": "how the words' (i2t: regions') similarities become a score"}
    )
    temperature: float = field(
        default=9.0, metadata={"help": "factor of the similarity in the softmax (the papers: 9 for t2i, 4 for i2t)"}
    )
    lse_temperature: float = field(default=6.0, metadata={"help": "factor of --aggregate logsumexp"})
    region_geometry: ChoiceEnum(list(GEOMETRY_SIZE)) = field(  # type: ignore[valid-type]
        default="none", metadata={"help": "box5 appends x0 y0 x1 y1 and area, relative to the image, to the features"}
    )
    noun_attention: ChoiceEnum(["all", "before", "after"]) = field(  # type: ignore[valid-type]
        default="all",
        metadata={
            "help": "which words count. all: SCAN; before: other words than nouns are removed before attention"
            " (pos_scan, as published); after: all words attend, nouns alone are averaged (Eq. 8 as printed)."
            " A caption without a noun counts all its words"
        },
    )
    ground_pos: str = field(
        default="NOUN",
        metadata={
            "help": "which words --noun-attention before and after keep: universal parts of speech, joined by commas"
            " (NOUN,ADJ). NOUN: what the folder marks as a noun (prepare-captions --noun-pos); any other: the words"
            " that are tagged so in more than half of their uses (pos.tsv of the folder)"
        },
    )
    weight_norm: bool = field(
        default=False,
        metadata={
            "help": "the regions' linear layer is a direction times one length (SCAN's --precomp_enc_type weight_norm)"
        },
    )
    unidirectional: bool = field(default=False, metadata={"help": "read the caption left to right only"})


@register_model("scan", dataclass=ScanConfig)
class ScanModel(MatchingModel):
    """SCAN (Lee et al., ECCV 2018); with ``noun_attention`` POS-SCAN (Zhou et al., CVPR 2020, section 3.1).

    Regions go through one linear layer, words through an embedding and a bidirectional GRU whose directions are
    averaged; both are l2-normalised.
    """

    region_weight = "region_projection.weight"
    further_words: Tensor

    def __init__(self, cfg: ScanConfig, dictionary, feature_size: int):
        super().__init__()
        if not cfg.temperature > 0:
            raise GroundingError(f"--temperature {cfg.temperature}: give more than 0")
        if cfg.direction == "i2t" and cfg.noun_attention == "after":
            raise GroundingError("--noun-attention after averages words, but --direction i2t averages regions")
        ground_pos = [name.strip() for name in cfg.ground_pos.split(",")]
        check_pos(ground_pos, "--ground-pos")
        if cfg.noun_attention == "all" and ground_pos != ["NOUN"]:
            raise GroundingError(
                f"--ground-pos {cfg.ground_pos}: all words count; give --noun-attention before or after"
            )
        self.grounds_nouns = "NOUN" in ground_pos
        self.further_pos = [name for name in ground_pos if name != "NOUN"]
        if self.further_pos:
            self.register_buffer("further_words", torch.zeros(len(dictionary), dtype=torch.bool))
        self.keep_dictionary(dictionary)
        self.feature_size = feature_size
        self.direction, self.norm, self.aggregate = str(cfg.direction), str(cfg.norm), str(cfg.aggregate)
        self.temperature, self.lse_temperature = cfg.temperature, cfg.lse_temperature
        self.region_geometry = str(cfg.region_geometry)
        self.noun_attention = str(cfg.noun_attention)
        self.nouns_only = self.noun_attention == "before"
        self.region_projection = nn.Linear(feature_size + GEOMETRY_SIZE[self.region_geometry], cfg.joint_size)
        if cfg.weight_norm:
            # one length for all rows together (-1), and drawn as torch draws a layer, both as SCAN does
            weight_norm(self.region_projection, dim=-1)
            self.region_weight = "region_projection.parametrizations.weight.original1"
        else:
            nn.init.xavier_uniform_(self.region_projection.weight)
            nn.init.zeros_(self.region_projection.bias)
        self.embedding = nn.Embedding(len(dictionary), cfg.word_embedding_size, dictionary.pad())
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.gru = nn.GRU(
            cfg.word_embedding_size, cfg.joint_size, batch_first=True, bidirectional=not cfg.unidirectional
        )

    @classmethod
    def build_model(cls, cfg, task):
        """Build for *task*'s dictionary and region features."""
        model = cls(cfg, task.target_dictionary, task.model_feature_size(cfg))
        # a model that is loaded without its folder finds them in its checkpoint
        if model.further_pos and hasattr(task, "folder"):
            words = words_of_pos(task.folder.pos_table(), model.further_pos)
            model.further_words.copy_(torch.tensor([symbol in words for symbol in task.target_dictionary.symbols]))
        return model

    def grounded(self, tokens: Tensor, noun_mask: Tensor) -> Tensor:
        mask = noun_mask.bool() if self.grounds_nouns else torch.zeros_like(noun_mask, dtype=torch.bool)
        return mask | self.further_words[tokens] if self.further_pos else mask

    def encode_regions(self, features: Tensor, boxes: Tensor) -> Tensor:
        return l2_normalise(self.region_projection(with_geometry(features, boxes, self.region_geometry)))

    def encode_words(self, tokens: Tensor, word_mask: Tensor) -> Tensor:
        # an empty caption has no length to pack; its one padding step is masked by the caller
        lengths = word_mask.sum(1).clamp(min=1).cpu()
        packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=tokens.shape[1])
        if self.gru.bidirectional:
            states = torch.stack(states.chunk(2, -1)).mean(0)
        return l2_normalise(states)

    def scores(self, encoded: Encoded) -> Tensor:
        mask = self.attending(encoded.word_mask, encoded.noun_mask)
        choices = self._scoring(encoded)
        return region_word_scores(encoded.regions, encoded.words, encoded.region_mask, mask, **choices)

    def pair_scores(self, encoded: Encoded, image_index: Tensor) -> Tensor:
        mask = self.attending(encoded.word_mask, encoded.noun_mask)
        regions, region_mask = encoded.regions[image_index], encoded.region_mask[image_index]
        return pair_scores(regions, encoded.words, region_mask, mask, **self._scoring(encoded))

    def _scoring(self, encoded: Encoded) -> Dict[str, Any]:
        counted = None
        if self.noun_attention == "after":
            any_noun = encoded.noun_mask.any(1, keepdim=True)
            counted = torch.where(any_noun, encoded.noun_mask, encoded.word_mask)
        return {
            "direction": self.direction,
            "norm": self.norm,
            "aggregate": self.aggregate,
            "temperature": self.temperature,
            "lse_temperature": self.lse_temperature,
            "aggregate_mask": counted,
        }


@register_model_architecture("scan", "pos_scan")
def pos_scan(cfg):
    """SCAN on nouns: the teacher of the paper."""
    if getattr(cfg, "noun_attention", "all") == "all":
        cfg.noun_attention = "before"
