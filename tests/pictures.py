"""Small vision models and images, for tests that treat both architectures alike."""

from dataclasses import replace

import torch
from torch import nn

from longshort.models.cvt import CvTConfig, CvTStage
from longshort.models.vil import ViLConfig, ViLStage
from longshort.nn.spec import Full, LongShort

LOCAL = LongShort(window=3, rank=2)
VIL = ViLConfig(
    stages=(
        ViLStage(width=8, heads=2, blocks=1, attention=LOCAL, stride=4, global_tokens=1),
        ViLStage(width=12, heads=2, blocks=2, attention=LOCAL, global_tokens=2),
        ViLStage(width=16, heads=4, blocks=1, attention=Full(), global_tokens=1),
        ViLStage(width=20, heads=4, blocks=1, attention=Full()),
    ),
    size=(48, 64),
    classes=5,
)
CVT = CvTConfig(
    stages=(
        CvTStage(width=8, heads=1, blocks=1, attention=LOCAL, kernel=7, stride=4),
        CvTStage(width=12, heads=2, blocks=2, attention=LOCAL),
        CvTStage(width=16, heads=2, blocks=1, attention=LOCAL),
    ),
    classes=5,
)
CONFIGS = {
    "ViL": VIL,
    "ViL, absolute": replace(VIL, stages=tuple(replace(s, positions="absolute") for s in VIL.stages)),
    "ViL, long-short everywhere": VIL.everywhere(),
    "CvT": CVT,
    "CvT, full": CVT.with_attention(Full(), Full(), Full()),
}


def model_of(config, seed=0):
    """Float64, in eval mode, with weights large enough that everything matters."""
    torch.manual_seed(seed)
    model = config.build().double().eval()
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_(std=0.3), m.running_var.uniform_(0.5, 2.0)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3) if p.numel() else None
    return model


def images(height, width, batch=2, seed=0):
    return torch.randn(batch, 3, height, width, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
