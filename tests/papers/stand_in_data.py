"""Small stand-ins for the data sets that shipped scenarios read: their format, and nothing to be learnt."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_all(root: Path) -> None:
    """MNIST as one file, UNIPEN by writer, and CIFAR-10."""
    rng = np.random.default_rng(1)
    _write_mnist(root / "mnist", rng)
    _write_unipen(root / "unipen62", rng)
    _write_cifar(root / "cifar10", rng)


def write_models(here: Path) -> None:
    """What scenarios leave that others begin with: files of that name, which are looked for."""
    for seed in (1, 2, 3):
        directory = here / "runs" / "partial-pretrain" / f"seed={seed}"
        directory.mkdir(parents=True)
        np.savez(directory / "model.npz", model=np.zeros(1))


def _images(rng: np.random.Generator, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)


def _write_mnist(directory: Path, rng: np.random.Generator) -> None:
    directory.mkdir()
    train, test = 3000, 1000
    np.savez(
        directory / "mnist.npz",
        x_train=_images(rng, train),
        y_train=(np.arange(train) % 10).astype(np.uint8),
        x_test=_images(rng, test),
        y_test=(np.arange(test) % 10).astype(np.uint8),
    )


def _write_unipen(directory: Path, rng: np.random.Generator) -> None:
    """210 writers with 100 characters each."""
    directory.mkdir()
    writers, each = 210, 100
    np.savez(
        directory / "unipen62.npz",
        x=_images(rng, writers * each),
        y=(np.arange(writers * each) % 62).astype(np.uint8),
        writer=np.repeat(np.arange(writers), each),
    )


def _write_cifar(directory: Path, rng: np.random.Generator) -> None:
    directory.mkdir()
    count = 3000
    np.savez(
        directory / "cifar10_batch1.npz",
        x=rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8),
        y=(np.arange(count) % 10).astype(np.uint8),
    )
