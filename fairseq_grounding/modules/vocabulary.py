"""The dictionary inside a checkpoint, so that a model says itself which words it knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from ..errors import GroundingError

KEY = "dictionary"


def _as_bytes(dictionary: Dictionary) -> Tensor:
    words = "\n".join(dictionary.symbols[dictionary.nspecial :])
    return torch.tensor(list(words.encode("utf-8")), dtype=torch.uint8)


def dictionary_in(state: Mapping[str, Any]) -> Dictionary | None:
    """The dictionary that a model's state holds, without counts; None where there is none."""
    if KEY not in state:
        return None
    dictionary = Dictionary()
    text = bytes(state[KEY].tolist()).decode("utf-8")
    for word in text.split("\n") if text else []:
        dictionary.add_symbol(word)
    return dictionary


class VocabularyMixin(nn.Module):
    """For models on words: keeps the dictionary in the state and refuses a state of another one.

    fairseq saves a dictionary's path only. With the words themselves in the checkpoint, a teacher can be loaded
    where its data is not, and a captioner is never decoded with another data set's words by accident.

    ``region_weight`` names the parameter that reads regions, (., width), so that features of another width are
    refused in words too.
    """

    region_weight: str

    def keep_dictionary(self, dictionary: Dictionary) -> None:
        """Hold *dictionary* (specials and words, in order) in the state."""
        self.words = dictionary
        self.register_buffer(KEY, _as_bytes(dictionary))

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> None:
        """Refuse a state that was trained with another dictionary or on other features."""
        super().upgrade_state_dict_named(state_dict, name)  # type: ignore[misc]
        width, own = state_dict[self.region_weight].shape[1], self.get_parameter(self.region_weight).shape[1]
        if width != own:
            raise GroundingError(
                f"the checkpoint reads regions of width {width}, this model of width {own} (features, and 5 more with"
                " --region-geometry box5); give --regions the store and the flag that it was trained with"
            )
        theirs, ours = state_dict.get(KEY), getattr(self, KEY)
        if theirs is not None and not torch.equal(theirs.cpu(), ours.cpu()):
            other = dictionary_in(state_dict)
            count = len(other) - other.nspecial if other is not None else 0
            raise GroundingError(
                f"the checkpoint was trained with another dictionary ({count:,} words) than the prepared folder's"
                f" ({len(self.words) - self.words.nspecial:,} words); use the folder that it was trained on"
            )
