"""Why a captioner said a word, and why a word matches a region: relevance of regions and words, by several methods.

:func:`explain` is the way in. Methods of gradients and ablation work with any captioner (:mod:`.rows` says what it
must have) and with matching models, ``lrp`` with captioners whose layers are described in :mod:`.architectures`, which
says how to add one.
"""

from .explain import METHODS, explain
from .explanation import Explanation

__all__ = ["METHODS", "Explanation", "explain"]
