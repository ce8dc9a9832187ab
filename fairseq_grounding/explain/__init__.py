"""Why a captioner said a word: relevance of regions and of earlier words, by several methods.

:func:`explain` is the way in. Methods of gradients and ablation work with any captioner (:mod:`.rows` says what it
must have), ``lrp`` with those whose layers are described in :mod:`.architectures`, which says how to add one.
"""

from .explain import METHODS, explain
from .explanation import Explanation

__all__ = ["METHODS", "Explanation", "explain"]
