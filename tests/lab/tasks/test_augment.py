"""Augmentation: RandAugment's operations are PIL's, what is drawn decides all, and labels are mixed as pictures are."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from shapes import picture

from longshort.lab.data.images import DEVIATION, MEAN, normalised
from longshort.lab.tasks import augment
from longshort.lab.tasks.augment import MOVES, OPERATIONS, Augment, augmented, matrices, moved, operated

NOTHING = Augment(operations=0, erase=0.0, mixup=0.0, cutmix=0.0)
NEAREST_OF_PIL = 1.5  # of 255: PIL rounds in between


def example():
    """With flat parts, bright and dark ones, and a colour that is all over."""
    image = picture("red", 0, (40, 40))
    image.paste((250, 250, 5), (0, 0, 12, 40)), image.paste((3, 60, 200), (30, 0, 40, 30))
    return image


def tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 255


def with_factor(enhance):
    return lambda image, level: enhance(image).enhance(1 + 0.09 * level)


PILS = {
    "autocontrast": lambda image, level: ImageOps.autocontrast(image),
    "equalize": lambda image, level: ImageOps.equalize(image),
    "invert": lambda image, level: ImageOps.invert(image),
    "posterize": lambda image, level: ImageOps.posterize(image, 4 - int(0.4 * abs(level))),
    "solarize": lambda image, level: ImageOps.solarize(image, 256 - int(25.6 * abs(level))),
    "colour": with_factor(ImageEnhance.Color),
    "contrast": with_factor(ImageEnhance.Contrast),
    "brightness": with_factor(ImageEnhance.Brightness),
    "sharpness": with_factor(ImageEnhance.Sharpness),
}


@pytest.mark.parametrize("level", [9.0, -9.0, 3.0])
@pytest.mark.parametrize("name", PILS)
def test_operations_are_pils(name, level):
    image = example()
    found = getattr(augment, name)(tensor(image), torch.tensor([level])).clamp(0, 1)
    expected = tensor(PILS[name](image, level))
    assert 255 * (found - expected).abs().max() <= NEAREST_OF_PIL
    assert getattr(augment, name) in OPERATIONS


def test_solarize_add_makes_the_dark_brighter():
    x = torch.tensor([10, 127, 128, 200]).float().view(1, 1, 2, 2).expand(1, 3, 2, 2) / 255
    found = 255 * augment.solarize_add(x, torch.tensor([-9.0]))
    assert found[0, 0].flatten().round().tolist() == [109, 226, 128, 200]


def test_an_even_picture_stays_as_it_is():
    x = torch.full((1, 3, 4, 4), 0.4)
    for operation in (augment.equalize, augment.autocontrast):
        torch.testing.assert_close(operation(x, torch.tensor([9.0])), x, atol=1e-3, rtol=0)


@pytest.mark.parametrize("level", [2.0, -3.0])
@pytest.mark.parametrize("move", MOVES)
def test_moves_are_pils(move, level):
    """PIL is told where each point of what comes out is taken from: the inverse."""
    image = example()
    matrix = matrices(np.array([move]), np.array([level], np.float32), 40)
    forth = np.vstack([matrix[0].double().numpy(), [0, 0, 1]])
    half = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])  # PIL counts from the corner of a pixel
    back = (half @ np.linalg.inv(forth) @ np.linalg.inv(half))[:2].flatten()
    fill = tuple(round(255 * m) for m in MEAN)
    expected = image.transform((40, 40), Image.Transform.AFFINE, tuple(back), Image.Resampling.BILINEAR, fillcolor=fill)
    found = moved(tensor(image), matrix)
    near = (255 * (found - tensor(expected)).abs())[:, :, 8:-8, 8:-8]  # PIL does not mix with what is filled in
    assert near.mean() < 1.0 and (near > 4).float().mean() < 0.02


def test_moves_go_as_far_as_their_level():
    levels = np.full(5, 10, np.float32)
    turn, shear_x, shear_y, right, down = matrices(np.array(MOVES), levels, 101).double()
    middle = torch.tensor([50.0, 50.0, 1.0], dtype=torch.double)
    for matrix in (turn, shear_x, shear_y):
        torch.testing.assert_close(matrix @ middle, middle[:2], atol=1e-4, rtol=0)
    torch.testing.assert_close(right @ middle, torch.tensor([95.45, 50.0], dtype=torch.double), atol=1e-3, rtol=0)
    torch.testing.assert_close(down @ middle, torch.tensor([50.0, 95.45], dtype=torch.double), atol=1e-3, rtol=0)
    linear = [matrix[:, :2].flatten().tolist() for matrix in (turn, shear_x, shear_y, right, down)]
    cosine, sine = np.cos(np.pi / 6), np.sin(np.pi / 6)
    expected = [[cosine, sine, -sine, cosine], [1, 0.3, 0, 1], [1, 0, 0.3, 1], [1, 0, 0, 1], [1, 0, 0, 1]]
    assert linear == [pytest.approx(each, abs=1e-6) for each in expected]


def test_each_picture_gets_its_own_operation():
    x = torch.rand(20, 3, 16, 16)
    operations = np.array([-1, *range(MOVES.stop), -1, 3, 3, 0])
    levels = np.linspace(-9, 9, 20).astype(np.float32)
    found = operated(x.clone(), operations, levels)
    for i, number in enumerate(operations):
        alone = operated(x[i : i + 1].clone(), operations[i : i + 1], levels[i : i + 1])
        torch.testing.assert_close(found[i : i + 1], alone)
        assert (number == -1) == torch.equal(alone, x[i : i + 1])


def test_nothing_is_what_is_evaluated_by():
    images = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8)
    draws = NOTHING.draw(3, 8, np.random.default_rng(0))
    found = augmented(images, draws)
    torch.testing.assert_close(found, normalised(images.float() / 255))
    mean, deviation = (torch.tensor(t)[:, None, None] for t in (MEAN, DEVIATION))
    torch.testing.assert_close(found * deviation + mean, images / 255.0)
    assert draws.own == 1.0 and draws.cut is None


def test_draws_depend_on_the_generator_alone_and_have_their_shares():
    usual = Augment()
    first, again = (usual.draw(4_000, 32, np.random.default_rng(5)) for _ in range(2))
    assert (first.operations == again.operations).all() and first.erased == again.erased and first.own == again.own
    assert np.mean(first.operations == -1) == pytest.approx(0.5, abs=0.02)
    assert set(np.unique(first.operations)) == {-1, *range(MOVES.stop)}
    assert np.abs(first.levels).mean() == pytest.approx(9, abs=0.05)
    assert np.mean(first.levels > 0) == pytest.approx(0.5, abs=0.03)
    assert np.mean([box is not None for box in first.erased]) == pytest.approx(0.25, abs=0.03)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) / 32**2 for box in first.erased if box]
    assert min(areas) > 0.01 and max(areas) < 0.36


def test_erased_parts_are_noise_and_the_rest_stays():
    torch.manual_seed(0)
    images = torch.full((40, 3, 32, 32), 128, dtype=torch.uint8)
    draws = Augment(operations=0, erase=1.0, mixup=0.0, cutmix=0.0).draw(40, 32, np.random.default_rng(0))
    found, plain = augmented(images, draws), normalised(torch.full((1, 3, 1, 1), 128 / 255))
    noise = []
    for x, box in zip(found, draws.erased, strict=True):
        left, top, right, bottom = box
        inside = torch.zeros(32, 32, dtype=torch.bool)
        inside[top:bottom, left:right] = True
        torch.testing.assert_close(x[:, ~inside], plain[0, :, :, 0].expand(3, int((~inside).sum())))
        noise.append(x[:, inside].flatten())
    noise = torch.cat(noise)
    assert noise.mean().abs() < 0.05 and noise.std() == pytest.approx(1.0, abs=0.05)


def test_mixup_is_a_mean_of_two():
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    draws = Augment(operations=0, erase=0.0, cutmix=0.0).draw(4, 8, np.random.default_rng(1))
    plain = normalised(images.float() / 255)
    assert 0 < draws.own < 1 and draws.cut is None
    torch.testing.assert_close(augmented(images, draws), draws.own * plain + (1 - draws.own) * plain.flip(0))


def test_cutmix_takes_a_rectangle_whose_share_is_its_area():
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    plain = normalised(images.float() / 255)
    for seed in range(20):
        draws = Augment(operations=0, erase=0.0, mixup=0.0).draw(4, 16, np.random.default_rng(seed))
        other = (augmented(images, draws) == plain.flip(0)).all(dim=1)[0]
        assert draws.cut is not None and other.float().mean().item() == pytest.approx(1 - draws.own, abs=1e-6)
        torch.testing.assert_close(augmented(images, draws)[0][:, ~other], plain[0][:, ~other])


def test_half_of_the_batches_are_mixed_in_either_way():
    usual = Augment()
    cut = [usual.mix(16, np.random.default_rng(seed))[1] is not None for seed in range(400)]
    assert 160 < sum(cut) < 240


@pytest.mark.parametrize(
    "wrong", [dict(operations=-1), dict(level=11), dict(deviation=-1.0), dict(erase=1.5), dict(mixup=-1.0)]
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="must"):
        Augment(**wrong)


def test_without_kornia_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "kornia.enhance", None)
    with pytest.raises(ImportError, match=r"longshort\[vision\]"):
        augment.sharpness(torch.rand(1, 3, 4, 4), torch.tensor([1.0]))
