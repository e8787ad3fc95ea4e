"""The simulated retina against the published numbers of the foveated images."""

import numpy as np
import pytest

from popflow.simulate.retina import receptive_field, retina_lattice, see


def test_lattice_has_the_published_receptive_fields():
    retina = retina_lattice(96)
    eccentricity = np.hypot(*(retina.positions - 48).T)
    assert len(retina.sizes) == 1038
    assert (eccentricity < 8).sum() == 165
    assert (eccentricity < 24).sum() == 600
    assert np.bincount(retina.sizes, minlength=8)[1:].tolist() == [1, 4, 64, 228, 303, 360, 78]
    assert retina.positions.min() == 1 and retina.positions.max() == 95
    assert len(np.unique(retina.positions, axis=0)) == 1038


def test_dimensions_are_ordered_by_size_then_raster():
    retina = retina_lattice(96)
    keys = retina.sizes * 96 * 96 + retina.positions[:, 0] * 96 + retina.positions[:, 1]
    assert (np.diff(keys) > 0).all()


@pytest.mark.parametrize("sigma", ["fixed", "proportional"])
@pytest.mark.parametrize("size", range(1, 8))
def test_kernels_sum_to_one(size, sigma):
    kernel = receptive_field(size, sigma)
    assert kernel.shape == (size, size)
    assert kernel.sum() == pytest.approx(1)


def test_blur_grows_only_when_proportional():
    def spread(size, sigma):
        kernel, offsets = receptive_field(size, sigma), np.arange(size) - (size - 1) / 2
        return (kernel.sum(axis=0) * offsets**2).sum()

    assert spread(7, "fixed") < 0.25
    assert spread(7, "proportional") > 2


def test_a_constant_image_is_seen_as_constant_away_from_the_border():
    retina = retina_lattice(96)
    seen = see(np.full((2, 3, 32, 32), 1.5), retina)
    inner = (np.abs(retina.positions - 48) < 40).all(axis=1)
    assert seen.shape == (2, 3, 1038)
    np.testing.assert_allclose(seen[..., inner], 1.5)


def test_a_single_pixel_field_reads_its_pixel():
    retina = retina_lattice(96)
    image = np.arange(32 * 32, dtype=float).reshape(1, 1, 32, 32)
    single = np.flatnonzero(retina.sizes == 1)
    row, column = retina.positions[single].T // 3
    np.testing.assert_allclose(see(image, retina)[0, 0, single], image[0, 0, row, column])


def test_images_that_do_not_fill_the_retina_are_refused():
    with pytest.raises(ValueError, match="do not fill"):
        see(np.zeros((1, 1, 28, 28)), retina_lattice(96))
