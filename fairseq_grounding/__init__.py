"""Grounded image captioning for fairseq: ``--user-dir`` points here, and importing registers everything."""

import logging

from .root_logger import unchanged_root_logger

with unchanged_root_logger():
    try:
        import fairseq.criterions
        import fairseq.models
        import fairseq.optim.lr_scheduler
        import fairseq.tasks
    except (ImportError, ValueError, AttributeError) as error:
        # fairseq 0.12.2 stops with a ValueError on Python 3.11 and newer
        raise ImportError(
            "fairseq_grounding needs a fairseq that this Python can import: install the extra"
            " fairseq-grounding[fairseq], or 've-fairseq==0.12.3' 'hydra-core==1.3.2' 'omegaconf==2.3.0' (Python 3.11"
            f" or 3.12) ({error})"
        ) from None

from . import criterions, models, optim, tasks
from .checkpoints import allow_configs
from .errors import install_excepthook

__version__ = "0.1.0"

# fairseq's commands let every library's debug notes through, and h5py has one for each conversion
logging.getLogger("h5py").setLevel(logging.INFO)
allow_configs()
install_excepthook()
