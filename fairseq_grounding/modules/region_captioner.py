"""What captioners of regions share: what their checkpoints hold, and the flags of some."""

from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.models import FairseqEncoderDecoderModel

from .regions import GEOMETRY_SIZE
from .scheduled_sampling import ScheduledSamplingConfig
from .vocabulary import VocabularyMixin


@dataclass
class RegionCaptionerConfig(ScheduledSamplingConfig):
    # fairseq's parser reads no annotation that is a string
    feature_size: Optional[int] = field(  # noqa: FA100
        default=None, metadata={"help": "width of a region's feature (default: that of the region store)"}
    )
    embedding_size: int = field(default=512, metadata={"help": "width of embedded words"})
    hidden_size: int = field(
        default=512, metadata={"help": "units of each LSTM, width of embedded regions and of the global vector"}
    )
    embedding_dropout: float = field(
        default=0.0,
        metadata={"help": "after each embedding (words, regions, global vector); the published code has none"},
    )
    region_geometry: ChoiceEnum(list(GEOMETRY_SIZE)) = field(  # type: ignore[valid-type]
        default="none", metadata={"help": "box5 appends x0 y0 x1 y1 and area, relative to the image, to the features"}
    )


class RegionCaptioner(VocabularyMixin, FairseqEncoderDecoderModel):
    """A captioner with its dictionary in the state; ``region_weight`` is a RegionEncoder's unless a subclass says."""

    region_weight = "encoder.region_embedding.0.weight"

    def __init__(self, encoder, decoder, dictionary, feature_size: int):
        super().__init__(encoder, decoder)
        self.keep_dictionary(dictionary)
        self.feature_size = feature_size
