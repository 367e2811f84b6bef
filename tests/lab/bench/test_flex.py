"""FlexAttention is given the mask of the geometry, rows after keys."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from longshort.geometry import Causal, Segments, Tiles
from longshort.lab.bench.flex import by_group, mask_of


@pytest.mark.parametrize(
    ("geometry", "tokens", "rows"),
    [
        (Causal(4, 4, 2), 18, 8),
        (Segments(3), 11, 2),
        (Segments(1), 5, 3),
        (Tiles(2, 4, 6), 24, 3),
        (Tiles(3, 5, 7), 35, 2),
    ],
    ids=str,
)
def test_mask_is_the_geometry(geometry, tokens, rows):
    mask = create_mask(mask_of(geometry, tokens, rows, "cpu"), 1, 1, tokens, tokens + rows, device="cpu")[0, 0]
    i, j, row = torch.arange(tokens)[:, None], torch.arange(tokens), torch.arange(rows)
    sees, sees_row = geometry.sees(i, j), geometry.sees_row(i, row)
    if isinstance(geometry, Tiles):
        order = by_group(geometry)
        sees, sees_row = sees[order][:, order], sees_row[order]
    assert torch.equal(mask, torch.cat([sees, sees_row], dim=1))


def test_groups_follow_one_another():
    assert by_group(Tiles(2, 2, 4)).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert sorted(by_group(Tiles(3, 5, 7)).tolist()) == list(range(35))
