"""PopT and BrainBERT: parity with the published code, sizes, symmetries, save and load."""

import numpy as np
import pytest
import torch

from popflow.models.popt import BrainBERT, PopT
from popflow.models.popt.finetuning import Decoder
from popflow.models.popt.layers import position_code
from popflow.models.popt.network import with_cls
from popflow.models.popt.optimisers import Lamb
from popflow.runtime.refusal import Refusal

SMALL = {"width": 32, "heads": 4, "layers": 2, "feedforward": 64, "dropout": 0.0}


def small(input_dim: int = 6, **more) -> PopT:
    return PopT(input_dim, **(SMALL | more), seed=0).eval()


def example(channels: int = 7, dim: int = 6, batch: int = 3):
    torch.manual_seed(1)
    x = with_cls(torch.randn(batch, channels, dim))
    segment = (torch.arange(channels) >= channels // 2).long().expand(batch, -1)
    return x, torch.rand(batch, channels, 3) * 200, segment


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("position", "first", "total"),
    [
        (0, [0, 1, 0, 1, 0, 1], 64.0),
        (1, [0.841471, 0.540302, 0.761720, 0.647906, 0.681561, 0.731761], 69.09422),
        (120, [0.580611, 0.814181, -0.240772, -0.970582, 0.899613, -0.436689], 40.64324),
    ],
)
def test_position_code_has_the_published_values(position, first, total):
    code = position_code(torch.tensor([position]), 128)[0]
    np.testing.assert_allclose(code[:6], first, atol=2e-6)
    assert float(code.sum()) == pytest.approx(total, abs=2e-4)


def test_ieeg_02_position_code_is_real_valued_and_continuous():
    """continuous coordinates do not fit a table."""
    at = position_code(torch.tensor([100.0, 100.001, 100.5]), 128)
    assert float((at[0] - at[1]).abs().max()) < 2e-3
    assert float((at[0] - at[2]).abs().max()) > 0.1


def test_rounding_truncates_as_the_reference():
    x, coords, segment = example()
    net = small(rounding="truncate")
    same = net(x, coords.floor(), segment).hidden
    torch.testing.assert_close(net(x, coords, segment).hidden, same)


def test_parameter_counts_at_the_published_size():
    net = PopT()
    assert count(net) == 19_310_082
    assert count(net.transformer_encoder) == 18_914_304
    assert count(net.input_encoding) == 394_752
    assert count(Decoder(net)) == 19_309_569


def test_popt_agrees_with_the_published_code(shared_data):
    golden = np.load(shared_data / "golden" / "popt_small_io.npz")
    net = PopT.from_published(shared_data / "golden" / "popt_small.safetensors", heads=4)
    tensors = [torch.tensor(golden[name]) for name in ("x", "coords", "segment", "pad_mask")]
    out = net(*tensors)
    real = ~golden["pad_mask"]
    np.testing.assert_allclose(out.hidden.detach()[real], golden["hidden"][real], atol=2e-5)
    np.testing.assert_allclose(out.ensemble_logit.detach(), golden["cls_logit"], atol=2e-5)
    channel, expected = out.channel_logit.detach(), golden["channel_logit"]
    np.testing.assert_allclose(channel[real[:, 1:]], expected[real[:, 1:]], atol=2e-5)


def test_brainbert_agrees_with_the_published_code(shared_data):
    golden = np.load(shared_data / "golden" / "brainbert_small_io.npz")
    net = BrainBERT.from_published(shared_data / "golden" / "brainbert_small.safetensors", heads=4)
    out = net(torch.tensor(golden["x"]))
    np.testing.assert_allclose(out.hidden.detach(), golden["hidden"], atol=2e-5)
    np.testing.assert_allclose(out.reconstruction.detach(), golden["reconstruction"], atol=2e-5)


def test_a_wrong_checkpoint_is_refused(tmp_path, shared_data):
    broken = tmp_path / "weights.safetensors"
    broken.write_bytes(b"not a checkpoint")
    with pytest.raises(Refusal, match="not readable as safetensors"):
        PopT.from_published(broken)
    with pytest.raises(Refusal, match="no tensor transformer_encoder.layers.0"):
        PopT.from_published(shared_data / "golden" / "brainbert_small.safetensors")


def test_permuting_channels_leaves_cls_unchanged():
    x, coords, segment = example()
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    moved = torch.cat([x[:, :1], x[:, 1:][:, order]], dim=1)
    net = small()
    one, other = net(x, coords, segment), net(moved, coords[:, order], segment[:, order])
    torch.testing.assert_close(one.ensemble_logit, other.ensemble_logit, atol=1e-5, rtol=0)
    torch.testing.assert_close(one.channel_logit[:, order], other.channel_logit, atol=1e-5, rtol=0)


def test_padding_changes_nothing():
    x, coords, segment = example()
    padded = torch.cat([x, torch.full((3, 4, 6), 9.0)], dim=1)
    mask = torch.zeros(3, 12, dtype=torch.bool)
    mask[:, 8:] = True
    more = torch.zeros(3, 4)
    net = small()
    out = net(padded, torch.cat([coords, more[..., None].expand(-1, -1, 3)], 1),
              torch.cat([segment, more.long()], 1), mask)  # fmt: skip
    plain = net(x, coords, segment)
    torch.testing.assert_close(out.hidden[:, :8], plain.hidden, atol=1e-5, rtol=0)


def test_without_positions_two_electrodes_are_alike():
    x, coords, _ = example()
    segment = torch.zeros(3, 7)
    swapped = x.clone()
    swapped[:, [1, 2]] = x[:, [2, 1]]
    blind, seeing = small(position="none"), small()
    torch.testing.assert_close(
        blind(x, coords, segment).ensemble_logit,
        blind(swapped, coords, segment).ensemble_logit,
        atol=1e-5,
        rtol=0,
    )
    a, b = seeing(x, coords, segment), seeing(swapped, coords, segment)
    assert float((a.ensemble_logit - b.ensemble_logit).abs().detach().max()) > 1e-4


def test_the_same_seed_draws_the_same_network_and_loading_keeps_it(tmp_path):
    net = small()
    net.save(tmp_path, {"seed": 0})
    again = PopT.load(tmp_path)
    for a, b in zip(net.parameters(), small().parameters(), strict=True):
        assert torch.equal(a, b)
    x, coords, segment = example()
    assert torch.equal(net(x, coords, segment).hidden, again(x, coords, segment).hidden)


def test_init_sets_the_norm_biases():
    assert float(small(init="reference").input_encoding.layer_norm.bias[0]) == 1.0
    assert float(small().input_encoding.layer_norm.bias[0]) == 0.0


def test_lamb_follows_its_rule():
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = Lamb([weight], lr=0.1)
    weight.grad = torch.tensor([1.0, -2.0])
    optimizer.step()
    m, v = 0.1 * np.array([1.0, -2.0]), 0.001 * np.array([1.0, 4.0])
    update = m / (np.sqrt(v) + 1e-6)
    expected = np.array([3.0, 4.0]) - 0.1 * 5.0 / np.linalg.norm(update) * update
    np.testing.assert_allclose(weight.detach(), expected, rtol=1e-5)
