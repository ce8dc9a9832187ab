"""DVSA: region-word alignment by dot products (Karpathy and Fei-Fei, CVPR 2015, section 3.1)."""

import logging
from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import register_model
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..data.word_vectors import read_word_vectors
from ..errors import GroundingError
from ..modules.alignment import ALIGNMENTS, alignment_scores, own_alignment_scores, smooth_alignment
from ..modules.cross_attention import NORMS
from ..modules.matching import Encoded, MatchingModel
from ..modules.regions import GEOMETRY_SIZE, covers_image, image_region_mask, whole_image, with_geometry

__all__ = ["DvsaConfig", "DvsaModel", "alignment_scores", "smooth_alignment"]

logger = logging.getLogger(__name__)

WORD_RNNS = ("relu", "gru")
WHOLE_IMAGE = ("add", "none")
WORD_EMBEDDING_SIZE = 300


@dataclass
class DvsaConfig(FairseqDataclass):
    feature_size: Optional[int] = field(
        default=None, metadata={"help": "width of a region's feature (default: that of the region store)"}
    )
    word_vectors: Optional[str] = field(
        default=None,
        metadata={
            "help": "start the words from this file, word2vec's text form or GloVe's, and leave them as they are, as"
            " the paper does; words that it lacks get random vectors"
        },
    )
    train_word_vectors: bool = field(default=False, metadata={"help": "with --word-vectors: train them too"})
    word_embedding_size: Optional[int] = field(
        default=None,
        metadata={
            "help": f"width of a word's embedding (default: that of --word-vectors, or {WORD_EMBEDDING_SIZE} without)"
        },
    )
    hidden_size: int = field(
        default=600, metadata={"help": "units of the words' recurrent layer in each direction (the paper: 300 to 600)"}
    )
    joint_size: int = field(
        default=1000, metadata={"help": "width of the space that regions and words share (the paper: 1000 to 1600)"}
    )
    word_rnn: ChoiceEnum(WORD_RNNS) = field(  # type: ignore[valid-type]
        default="relu",
        metadata={"help": "how words read their sentence, both ways: relu units, as in the paper, or gru"},
    )
    alignment: ChoiceEnum(ALIGNMENTS) = field(  # type: ignore[valid-type]
        default="max",
        metadata={
            "help": "the score of an image and a caption. max: each word takes its best region (the paper's Eq. 8);"
            " relu-sum: all positive dot products (Eq. 7); region-max: each region takes its best word (not the"
            " paper's)"
        },
    )
    whole_image: ChoiceEnum(WHOLE_IMAGE) = field(  # type: ignore[valid-type]
        default="add",
        metadata={
            "help": "add: where no region of an image covers it, the mean of its regions takes part in the score as the"
            " whole image, one region more, which is never attended to; none: the store's regions alone"
        },
    )
    dropout: float = field(
        default=0.2,
        metadata={
            "help": "of region features, word vectors and before the last layer of words (the paper gives no rate)"
        },
    )
    region_geometry: ChoiceEnum(list(GEOMETRY_SIZE)) = field(  # type: ignore[valid-type]
        default="none", metadata={"help": "box5 appends x0 y0 x1 y1 and area, relative to the image, to the features"}
    )
    norm: ChoiceEnum(NORMS) = field(  # type: ignore[valid-type]
        default="clipped_l2",
        metadata={
            "help": "of the normalised read-out: how dot products are normalised over words (no part in training)"
        },
    )
    temperature: float = field(
        default=9.0, metadata={"help": "factor in the softmax over regions of both read-outs (no part in training)"}
    )


class ReluBrnn(nn.Module):
    """Two recurrent layers of ReLU units, one each way, that add their input as it is (Eqs. 4 and 5).

    h_t = relu(e_t + W h_{t-1} + b). The matrices start orthogonal: a ReLU step then lengthens neither states nor
    gradients, however long the caption.

    Args:
        size: H
    """

    def __init__(self, size: int):
        super().__init__()
        self.forward_layer, self.backward_layer = nn.Linear(size, size), nn.Linear(size, size)
        for layer in (self.forward_layer, self.backward_layer):
            nn.init.orthogonal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tuple[Tensor, Tensor]:
        """Read inputs (C,W,H), real where mask (C,W): states left to right and right to left, (C,W,H) each."""
        lengths = mask.sum(1, keepdim=True)
        places = torch.arange(mask.shape[1], device=mask.device)[None]
        # each caption turned around within its own length; padding stays behind it
        turn = torch.where(places < lengths, lengths - 1 - places, places)[:, :, None].expand_as(inputs)
        weight = torch.stack([self.forward_layer.weight, self.backward_layer.weight]).transpose(1, 2)
        bias = torch.stack([self.forward_layer.bias, self.backward_layer.bias])[:, None, None]
        both = torch.stack([inputs, inputs.gather(1, turn)]) + bias
        state = both.new_zeros(2, len(inputs), inputs.shape[2])
        states = []
        for step, real in zip(both.unbind(2), mask.unbind(1)):
            # no state behind a caption's end: it could only grow
            state = torch.baddbmm(step, state, weight).relu() * real[None, :, None]
            states.append(state)
        ahead, turned = torch.stack(states, 2)
        return ahead, turned.gather(1, turn)


@register_model("dvsa", dataclass=DvsaConfig)
class DvsaModel(MatchingModel):
    """Deep visual-semantic alignments, with ``--criterion image_text_triplet --negatives all --margin 1``.

    Regions go through one linear layer (Eq. 1). A word x becomes e = relu(W_e x + b_e), goes through a bidirectional
    recurrent layer, and comes out as s = relu(W_d (h_f + h_b) + b_d) (Eqs. 2 to 6). Neither is normalised: a score is
    made of plain dot products.

    One of the regions is the whole image. Where the store has none that covers an image, :meth:`encode` puts one behind
    the others: the mean of the image's regions. It takes part in scores and rewards. Attention is over the store's
    regions, by their numbers, so there it is left out.
    """

    region_weight = "region_projection.weight"

    def __init__(self, cfg: DvsaConfig, dictionary, feature_size: int):
        super().__init__()
        if not cfg.temperature > 0:
            raise GroundingError(f"--temperature {cfg.temperature}: give more than 0")
        if cfg.train_word_vectors and cfg.word_vectors is None and cfg.word_embedding_size is None:
            raise GroundingError("--train-word-vectors: belongs to --word-vectors FILE; without it words are trained")
        self.keep_dictionary(dictionary)
        self.feature_size = feature_size
        self.kind, self.norm, self.temperature = str(cfg.alignment), str(cfg.norm), cfg.temperature
        self.region_geometry = str(cfg.region_geometry)
        self.adds_whole_image = str(cfg.whole_image) == "add"
        self.dropout = nn.Dropout(cfg.dropout)
        self.region_projection = nn.Linear(feature_size + GEOMETRY_SIZE[self.region_geometry], cfg.joint_size)
        self.embedding = _embedding(cfg, dictionary)
        self.settled: Dict[str, Any] = {"word_embedding_size": self.embedding.embedding_dim, "word_vectors": None}
        self.word_projection = nn.Linear(self.embedding.embedding_dim, cfg.hidden_size)
        self.gru = None
        if str(cfg.word_rnn) == "gru":
            self.gru = nn.GRU(cfg.hidden_size, cfg.hidden_size, batch_first=True, bidirectional=True)
        else:
            self.brnn = ReluBrnn(cfg.hidden_size)
        self.output_projection = nn.Linear(cfg.hidden_size, cfg.joint_size)
        for layer in (self.region_projection, self.word_projection, self.output_projection):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    @classmethod
    def build_model(cls, cfg, task):
        """Build for *task*'s dictionary and region features."""
        return cls(cfg, task.target_dictionary, task.model_feature_size(cfg))

    def encode_regions(self, features: Tensor, boxes: Tensor) -> Tensor:
        return self.region_projection(self.dropout(with_geometry(features, boxes, self.region_geometry)))

    def encode_words(self, tokens: Tensor, word_mask: Tensor) -> Tensor:
        inputs = self.word_projection(self.dropout(self.embedding(tokens))).relu()
        if self.gru is None:
            ahead, back = self.brnn(inputs, word_mask)
        else:
            # an empty caption has no length to pack; its one padding step is masked by the caller
            lengths = word_mask.sum(1).clamp(min=1).cpu()
            packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
            states, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=tokens.shape[1])
            ahead, back = states.chunk(2, -1)
        return self.output_projection(self.dropout(ahead + back)).relu()

    def encode(self, src_tokens, features, boxes, image_index, target, noun_mask) -> Encoded:
        """Embed a batch, with one column of regions more than the store has: the whole image, where it was added."""
        encoded = super().encode(src_tokens, features, boxes, image_index, target, noun_mask)
        if not self.adds_whole_image:
            return encoded
        mask = image_region_mask(src_tokens, image_index, len(features), self.words.pad())
        lacks = ~covers_image(boxes.float(), mask).any(1, keepdim=True)
        frame = boxes.new_tensor([0.0, 0.0, 1.0, 1.0]).expand(len(boxes), 1, 4)
        whole = self.encode_regions(whole_image(features, boxes, mask)[:, None], frame) * lacks[:, :, None]
        return encoded._replace(
            regions=torch.cat([encoded.regions, whole], 1), region_mask=torch.cat([encoded.region_mask, lacks], 1)
        )

    def scores(self, encoded: Encoded) -> Tensor:
        return alignment_scores(encoded.regions, encoded.words, encoded.region_mask, encoded.word_mask, kind=self.kind)

    def pair_scores(self, encoded: Encoded, image_index: Tensor) -> Tensor:
        regions, region_mask = encoded.regions[image_index], encoded.region_mask[image_index]
        return own_alignment_scores(regions, encoded.words, region_mask, encoded.word_mask, kind=self.kind)

    def reward(self, encoded: Encoded, image_index: Tensor) -> Tensor:
        """A mean in place of the score's sum: over words, or with ``region-max`` over regions."""
        score = self.pair_scores(encoded, image_index)
        summed = encoded.region_mask[image_index] if self.kind == "region-max" else encoded.word_mask
        return score / summed.sum(1).clamp(min=1)

    def attend_own(self, encoded: Encoded, image_index: Tensor, readout: str) -> Tuple[Tensor, Tensor]:
        """:meth:`attend` for each caption of a batch in its own image, over the store's regions."""
        if self.adds_whole_image:
            encoded = encoded._replace(regions=encoded.regions[:, :-1], region_mask=encoded.region_mask[:, :-1])
        return super().attend_own(encoded, image_index, readout)


def _embedding(cfg: DvsaConfig, dictionary) -> nn.Embedding:
    """The words' vectors: trained from nothing, or those of a file."""
    if cfg.word_vectors is None:
        embedding = nn.Embedding(len(dictionary), cfg.word_embedding_size or WORD_EMBEDDING_SIZE, dictionary.pad())
        nn.init.uniform_(embedding.weight, -0.1, 0.1)
        with torch.no_grad():
            embedding.weight[dictionary.pad()] = 0
        return embedding
    vectors, found = (
        torch.from_numpy(array)
        for array in read_word_vectors(cfg.word_vectors, dictionary.symbols, cfg.word_embedding_size)
    )
    spread = float(vectors[found].square().mean().sqrt())
    weight = torch.where(found[:, None], vectors, torch.randn_like(vectors) * spread)
    weight[dictionary.pad()] = 0
    words = range(dictionary.nspecial, len(dictionary))
    seen = sum(dictionary.count[word] for word in words)
    known = sum(dictionary.count[word] for word in words if found[word])
    logger.info(
        f"--word-vectors {cfg.word_vectors}: width {weight.shape[1]}, has {int(found.sum()):,} of {len(words):,} words,"
        f" {known / max(1, seen):.1%} of the training words that the dictionary has"
    )
    return nn.Embedding.from_pretrained(weight, freeze=not cfg.train_word_vectors, padding_idx=dictionary.pad())
