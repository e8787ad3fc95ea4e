"""PopT, the Population Transformer (Chau et al., ICLR 2025, arXiv 2406.03044).

A transformer over the electrodes of one moment, pretrained with two discriminative objectives on
the outputs of a frozen per-channel encoder, and BrainBERT, the encoder that it was published with.
"""

from typing import Any

_PLACES = {
    "PopT": "popflow.models.popt.network",
    "PopTOutput": "popflow.models.popt.network",
    "BrainBERT": "popflow.models.popt.brainbert",
    "PairSampler": "popflow.models.popt.sampler",
    "pretrain": "popflow.models.popt.pretraining",
    "finetune": "popflow.models.popt.finetuning",
    "stft_image": "popflow.prepare.encoders",
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
