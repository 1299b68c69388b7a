"""Attention over keys in parts: the same mixture as over all keys at once."""

import pytest
import torch

from voidpad.engine.packed import KeyParts


def attend(q, k, v, queries, keys):
    """Variable-length attention with the logarithms of the sums of exponentials, as torch's kernel returns them."""
    mixed, weight = torch.zeros_like(q), torch.full(q.shape[:2], torch.inf)
    for s in range(len(queries) - 1):
        (a, b), (c, d) = queries[s : s + 2].tolist(), keys[s : s + 2].tolist()
        if a < b and c < d:
            scores = torch.einsum("qhd,khd->qhk", q[a:b], k[c:d])
            mixed[a:b] = torch.einsum("qhk,khd->qhd", scores.softmax(-1), v[c:d])
            weight[a:b] = scores.logsumexp(-1)
    return mixed, weight.T


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_parts_of_keys_combine_to_the_whole(parts):
    generator = torch.Generator().manual_seed(parts)
    # Rows of several sizes, unread keys without queries before some, and a filler with fewer keys than parts.
    sizes, widths = [0, 5, 0, 32, 0, 0, 0, 2], [3, 70, 0, 200, 9, 0, 11, 2]
    queries, keys = (torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (sizes, widths))
    q, k, v = (torch.randn(n, 3, 8, generator=generator) for n in (sum(sizes), sum(widths), sum(widths)))
    divided = KeyParts.of(queries, keys, len(q), parts)
    assert int(divided.keys.diff().max()) <= -(-200 // parts)
    found = divided.combined(*attend(q[divided.source], k, v, divided.queries, divided.keys))
    torch.testing.assert_close(found, attend(q, k, v, queries, keys)[0], rtol=1e-5, atol=1e-6)
