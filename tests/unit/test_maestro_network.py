"""The set encoder and decoder: exactness and invariances."""

import pytest
import torch

from popflow.models.maestro.network import (
    MAB,
    PMA,
    Decoder,
    Encoder,
    Sizes,
    Softmax,
    Standardiser,
)


@pytest.fixture
def sizes():
    return Sizes(
        markers=6,
        width=16,
        latent=12,
        heads=4,
        blocks=3,
        inducing=5,
        outputs=20,
        decoder_blocks=1,
        cell_weights=True,
        standardise=True,
    )


@pytest.fixture
def encoder(sizes):
    torch.manual_seed(0)
    encoder = Encoder(sizes).double().eval()
    encoder.standardiser.update(torch.randn(30, sizes.latent))
    return encoder


@pytest.fixture
def cells():
    return torch.randn(3, 101, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def naive_attention(block, query, key):
    """Attention as its formula stands, one head at a time."""
    q, k, v = block.wq(query), block.wk(key), block.wv(key)
    head = block.width // block.heads
    parts = []
    for h in range(block.heads):
        s = slice(h * head, (h + 1) * head)
        a = (q[..., s] @ k[..., s].transpose(-1, -2) / head**0.5).softmax(-1)
        parts.append(a @ v[..., s])
    x = block.norm0(q + torch.cat(parts, -1))
    feed = block.feed
    swiglu = feed.w3(torch.nn.functional.silu(feed.w1(x)) * feed.w2(x))
    return block.norm1(x + swiglu)


def test_attention_block_is_its_formula():
    torch.manual_seed(0)
    block = MAB(6, 5, 8, 2).double()
    query, key = torch.randn(2, 4, 6).double(), torch.randn(2, 9, 5).double()
    torch.testing.assert_close(block(query, key), naive_attention(block, query, key))


def test_permutation_and_duplication_change_nothing(encoder, cells):
    with torch.no_grad():
        z = encoder(cells)
        torch.testing.assert_close(encoder(cells[:, torch.randperm(101)]), z)
        torch.testing.assert_close(encoder(cells.repeat(1, 2, 1)), z)


def test_permutation_in_single_precision(encoder, cells):
    single = encoder.float()
    with torch.no_grad():
        z = single(cells.float())
        torch.testing.assert_close(single(cells.float().flip(1)), z, rtol=1e-5, atol=1e-5)


def test_padding_changes_nothing(encoder, cells):
    padded = torch.cat([cells, torch.full((3, 40, 6), 7.0).double()], dim=1)
    weight = torch.zeros(3, 141).double()
    weight[:, 101:] = -torch.inf
    with torch.no_grad():
        torch.testing.assert_close(encoder(padded, weight), encoder(cells))


@pytest.mark.parametrize("chunk", [1, 7, 50, 101, 500])
def test_streamed_equals_whole(encoder, cells, chunk):
    one = cells[0]
    with torch.no_grad():
        z = encoder(one[None])[0]
        states = encoder.states(one[None])[0]
        streamed, mean, sd = encoder.stream(lambda: one.split(chunk))
    torch.testing.assert_close(streamed.double(), z, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(mean.double(), states.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sd.double(), states.std(0, correction=0), rtol=1e-4, atol=1e-5)


def test_softmax_sum_survives_large_logits():
    torch.manual_seed(0)
    block = MAB(4, 4, 8, 2)
    query, key = torch.randn(1, 3, 4), 300 * torch.randn(1, 60, 4)
    attention = Softmax(block, query)
    for part in key.split(11, dim=1):
        attention.add(part)
    torch.testing.assert_close(attention.result(), block(query, key), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("visible", "hidden"), [(40, 60), (99, 1), (100, 0)])
def test_two_token_decoder_is_exact(sizes, visible, hidden):
    torch.manual_seed(0)
    decoder = Decoder(sizes).double()
    z = torch.randn(2, sizes.latent).double()
    tokens = torch.cat(
        [z[:, None].expand(-1, visible, -1), decoder.mask_token.expand(2, hidden, -1)], dim=1
    )
    with torch.no_grad():
        x = naive_attention(decoder.pool.block, decoder.pool.seeds.expand(2, -1, -1), tokens)
        x = naive_attention(decoder.blocks[0], x, x) + x
        cells, weights = decoder(z, visible, hidden)
        torch.testing.assert_close(cells, decoder.out(x), rtol=1e-12, atol=1e-12)
    assert cells.shape == (2, sizes.outputs, sizes.markers)
    torch.testing.assert_close(weights.sum(1), torch.ones(2).double())


def test_pooling_has_one_row_per_seed():
    assert PMA(4, 6, 8, 2)(torch.randn(3, 50, 6)).shape == (3, 4, 8)


def test_standardiser_converges_to_mean_and_spread():
    torch.manual_seed(0)
    layer = Standardiser(3, memory=50)
    for _ in range(400):
        layer.update(torch.randn(64, 3) * torch.tensor([1.0, 2.0, 5.0]) + 3)
    z = layer(torch.randn(5000, 3) * torch.tensor([1.0, 2.0, 5.0]) + 3)
    assert z.mean(0).abs().max() < 0.1
    assert (z.std(0) - 1).abs().max() < 0.1
    assert {"mean", "variance", "batches"} == set(layer.state_dict())
