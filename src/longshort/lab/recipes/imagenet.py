"""ImageNet classification: the vision half of the paper, and Imagenette in minutes.

All of ImageNet's take `data`: a folder with train and val in it, a folder for each class in those, as they are or as
zip or tar files.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from longshort.lab.data.images import ImageFolder
from longshort.lab.tasks.images import ImageClassification
from longshort.lab.train import AdamW, Run, Schedule
from longshort.models import cvt, vil
from longshort.models.cvt import CvTConfig
from longshort.models.vil import ViLConfig
from longshort.nn.spec import LongShort

IMAGES = 1_281_167  # of ImageNet, to train on
BATCH, EPOCHS, WARMUP = 1024, 300, 5


def of_imagenet(
    name: str, model: ViLConfig | CvTConfig, data: Path, seed: int, *, side: int, optimizer: AdamW, drop_path: float
) -> Run:
    """300 epochs on a cosine, 5 of them warm-up, in batches of 1,024; the recipe of DeiT, with a moving average."""
    steps = IMAGES // BATCH  # of an epoch
    return Run(
        name=f"imagenet.{name}",
        model=replace(model, drop_path=drop_path),
        task=ImageClassification(
            ImageFolder(data),
            side=side,
            images=BATCH,
            order=seed,
            crop=0.875 if side == 224 else 1.0,
            classes=model.classes,
        ),
        steps=EPOCHS * steps,
        optimizer=optimizer,
        schedule=Schedule("cosine", warmup=WARMUP * steps, final=1e-6 / optimizer.lr),
        average=0.99996,
        compile=True,
        graph=True,
        seed=seed,
        log_every=50,
        evaluate_every=5 * steps,
        save_every=steps,
    )


def vil_ls_medium(data: Path, seed: int = 0) -> Run:
    """ViL-LS-medium at 224², 39.8M parameters. Paper: 83.8 % of ImageNet's validation set. Ours: not yet run.

    Settings as released: rate 8e-4, weight decay 0.1, drop path 0.3.
    Cost: 375,300 steps of 1,024 pictures; an H200 trains on about 1,500 pictures a second (bench vision), so 3 days
    on one.
    Command: torchrun --nproc_per_node 8 -m longshort train imagenet.vil_ls_medium --data imagenet/

    Args:
        data: folder with ImageNet
        seed: of weights, of the order of pictures and of what happens to them
    """
    optimizer = AdamW(lr=8e-4, weight_decay=0.1)
    return of_imagenet("vil_ls_medium", vil.PRESETS["medium"], data, seed, side=224, optimizer=optimizer, drop_path=0.3)


def vil_ls_base(data: Path, seed: int = 0) -> Run:
    """ViL-LS-base at 224², 55.8M parameters. Paper: 84.1 %. Ours: not yet run.

    Settings as released: rate 8e-4, weight decay 0.1, drop path 0.5.
    Command: torchrun --nproc_per_node 8 -m longshort train imagenet.vil_ls_base --data imagenet/

    Args:
        data: folder with ImageNet
        seed: of weights, of the order of pictures and of what happens to them
    """
    optimizer = AdamW(lr=8e-4, weight_decay=0.1)
    return of_imagenet("vil_ls_base", vil.PRESETS["base"], data, seed, side=224, optimizer=optimizer, drop_path=0.5)


def vil_ls_medium_384(data: Path, seed: int = 0) -> Run:
    """ViL-LS-medium at 384², from the start. Paper: 84.4 %. Ours: not yet run.

    Settings as released: rate 8e-4, weight decay 0.1, drop path 0.2.
    Command: torchrun --nproc_per_node 8 -m longshort train imagenet.vil_ls_medium_384 --data imagenet/

    Args:
        data: folder with ImageNet
        seed: of weights, of the order of pictures and of what happens to them
    """
    optimizer = AdamW(lr=8e-4, weight_decay=0.1)
    return of_imagenet(
        "vil_ls_medium_384", vil.PRESETS["medium_384"], data, seed, side=384, optimizer=optimizer, drop_path=0.2
    )


def of_cvt(preset: str, data: Path, seed: int, *, side: int = 224, drop_path: float = 0.1) -> Run:
    """The paper's rate of 5e-4; for weight decay and drop path, which it does not name, PVT's and CvT's."""
    optimizer = AdamW(lr=5e-4, weight_decay=0.05)
    return of_imagenet(
        f"cvt_{preset}", cvt.PRESETS[preset], data, seed, side=side, optimizer=optimizer, drop_path=drop_path
    )


def cvt_ls_13(data: Path, seed: int = 0) -> Run:
    """CvT*-LS-13 at 224², 20.2M parameters. Paper: 81.9 %. Ours: not yet run.

    Command: torchrun --nproc_per_node 8 -m longshort train imagenet.cvt_ls_13 --data imagenet/

    Args:
        data: folder with ImageNet
        seed: of weights, of the order of pictures and of what happens to them
    """
    return of_cvt("ls_13", data, seed)


def cvt_ls_17(data: Path, seed: int = 0) -> Run:
    """CvT*-LS-17 at 224², 23.5M parameters. Paper: 82.5 %. Ours: not yet run.

    Command: torchrun --nproc_per_node 8 -m longshort train imagenet.cvt_ls_17 --data imagenet/

    Args:
        data: folder with ImageNet
        seed: of weights, of the order of pictures and of what happens to them
    """
    return of_cvt("ls_17", data, seed)


def cvt_ls_21(data: Path, side: Literal[224, 384, 448] = 224, seed: int = 0) -> Run:
    """CvT*-LS-21 at 224², 384² or 448², 31.9M parameters. Paper: 82.7, 83.2 and 83.6 %. Ours: not yet run.

    Command: torchrun --nproc_per_node 8 -m longshort train imagenet.cvt_ls_21 --data imagenet/ --side 384

    Args:
        data: folder with ImageNet
        side: of pictures; windows and ranks are the paper's for it
        seed: of weights, of the order of pictures and of what happens to them
    """
    return of_cvt("ls_21" if side == 224 else f"ls_21_{side}", data, seed, side=side)


def cvt_ls_21s(data: Path, seed: int = 0) -> Run:
    """CvT*-LS-21S at 224², 30.7M parameters. Paper: 82.9 %. Ours: not yet run.

    Command: torchrun --nproc_per_node 8 -m longshort train imagenet.cvt_ls_21s --data imagenet/

    Args:
        data: folder with ImageNet
        seed: of weights, of the order of pictures and of what happens to them
    """
    return of_cvt("ls_21s", data, seed)


def cvt_13(data: Path, seed: int = 0) -> Run:
    """CvT-13 with full attention at 224², 20.0M parameters. Paper: 81.6 % (its own training: 81.1). Ours: not yet run.

    Command: torchrun --nproc_per_node 8 -m longshort train imagenet.cvt_13 --data imagenet/

    Args:
        data: folder with ImageNet
        seed: of weights, of the order of pictures and of what happens to them
    """
    return of_cvt("13", data, seed)


def cvt_21(data: Path, seed: int = 0) -> Run:
    """CvT-21 with full attention at 224², 31.6M parameters. Paper: 82.5 %. Ours: not yet run.

    Command: torchrun --nproc_per_node 8 -m longshort train imagenet.cvt_21 --data imagenet/

    Args:
        data: folder with ImageNet
        seed: of weights, of the order of pictures and of what happens to them
    """
    return of_cvt("21", data, seed)


NETTE_STEPS = 9_469 // 128  # of an epoch
NetteModel = Literal["cvt_ls_13", "cvt_13", "cvt_ls_13_plain"]


def imagenette(
    data: Path,
    model: NetteModel = "cvt_ls_13",
    side: int = 160,
    epochs: int = 60,
    rate: float = 5e-4,
    seed: int = 0,
) -> Run:
    """Imagenette, ten easy classes of ImageNet, in minutes of one GPU: long-short or full attention, or without DualLN.
    Not in the paper. Ours: not yet run as it is; 8 epochs at 64² on a CPU: 35.5, 45.9 and, without DualLN, 44.1 %.

    The same recipe as for ImageNet, in small: batches of 128, RandAugment, erasing, mixup and cutmix, a twelfth of the
    steps for warming up.
    Command: longshort train imagenet.imagenette --data imagenette2-160/ --model cvt_13

    All three, in a table: longshort report imagenette --data imagenette2-160/

    Args:
        data: Imagenette: its folder, with train and val in it, or a zip or tar file of it
        model: CvT*-LS-13, CvT-13 with full attention, or CvT*-LS-13 without DualLN
        side: of pictures
        epochs: passes over the 9,469 pictures
        rate: of learning, at its peak; at 1e-3 long-short attention did not learn (LOG.md)
        seed: of weights, of the order of pictures and of what happens to them
    """
    config = cvt.PRESETS["13" if model == "cvt_13" else "ls_13"]
    if model == "cvt_ls_13_plain":
        attentions = (
            replace(s.attention, dual_norm=False) for s in config.stages if isinstance(s.attention, LongShort)
        )
        config = config.with_attention(*attentions)
    run = of_few(data, config, classes=10, side=side, batch=128, steps=epochs * NETTE_STEPS, rate=rate, seed=seed)
    name = f"imagenet.imagenette.{model}.{side}.seed{seed}"
    return replace(run, name=name, evaluate_every=5 * NETTE_STEPS, save_every=5 * NETTE_STEPS)


def pictures(
    data: Path,
    classes: int,
    model: Literal["cvt_ls_13", "cvt_ls_21", "vil_ls_medium"] = "cvt_ls_13",
    side: int = 224,
    batch: int = 64,
    rate: float = 2e-4,
    seed: int = 0,
) -> Run:
    """Pictures of your own, a folder for each class, as they are or as zip or tar files. Ours: not yet run.

    Imagenette's recipe with smaller batches and a lower rate, for 10,000 steps.

    Command: longshort train imagenet.pictures --data my-pictures/ --classes 5 --steps 3000

    Args:
        data: a folder with train and val in it, and a folder for each class in those
        classes: how many there are
        model: CvT*-LS-13, CvT*-LS-21 or ViL-LS-medium
        side: of what is cut out of pictures
        batch: pictures of a step
        rate: of learning, at its peak
        seed: of weights, of the order of pictures and of what happens to them
    """
    family, _, preset = model.partition("_")
    config: ViLConfig | CvTConfig = cvt.PRESETS[preset] if family == "cvt" else vil.PRESETS["medium"]
    if isinstance(config, ViLConfig):
        config = replace(config, size=(side, side))
    return of_few(data, config, classes=classes, side=side, batch=batch, steps=10_000, rate=rate, seed=seed)


def of_few(
    data: Path,
    model: ViLConfig | CvTConfig,
    *,
    classes: int,
    side: int,
    batch: int,
    steps: int,
    rate: float,
    seed: int,
) -> Run:
    """ImageNet's recipe for thousands of pictures rather than a million."""
    return Run(
        name="imagenet.pictures",
        model=replace(model, classes=classes, drop_path=0.1),
        task=ImageClassification(
            ImageFolder(data), side=side, images=batch, order=seed, evaluation_batch=157, crop=1.0, classes=classes
        ),
        steps=steps,
        optimizer=AdamW(lr=rate, weight_decay=0.05),
        schedule=Schedule("cosine", warmup=steps // 12, final=0.01),
        average=0.999,
        clip=1.0,
        compile=True,
        graph=True,
        seed=seed,
        log_every=50,
        evaluate_every=500,
        save_every=500,
    )
