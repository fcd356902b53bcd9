"""Tests the final model of a federation: `python evaluate.py federation`.

This program looks at the test samples of all sites, which only an example can do. A real site tests
`final.npz` or `model.safetensors` on its own samples.
"""

import sys
from pathlib import Path

import torch
from digits_loaders import SITES, loaders
from digits_net import Net
from safetensors.torch import load_file


def accuracy(net: torch.nn.Module, site: int) -> float:
    _, test = loaders(site)
    with torch.no_grad():
        right = sum(int((net(x).argmax(1) == y).sum()) for x, y in test)
    return right / len(test.dataset)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("name the directory of a finished run: python evaluate.py federation")
    path = Path(sys.argv[1]) / "server" / "run" / "model.safetensors"
    if not path.exists():
        sys.exit(f"{path} does not exist: is the run over?")
    net = Net()
    net.load_state_dict(load_file(path))
    for site in range(1, SITES + 1):
        print(f"site {site}: {accuracy(net, site):.1%} of its test samples are right")


if __name__ == "__main__":
    main()
