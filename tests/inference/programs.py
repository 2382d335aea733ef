"""Programs of users, as text for files: a body with batch norm, and a frozen backbone."""

from pathlib import Path

BODY = """
from torch import nn

def net(shape):
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 5, stride=3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2),
        nn.Flatten(), nn.Linear(4 * ((shape[1] - 2) // 3) * ((shape[2] - 2) // 3), 8)
    )
"""

BACKBONE = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.Flatten(),
                            nn.Linear(8 * 7 * 7, 24), nn.Tanh())
    return network, lambda images: (images - 127) / 128
"""

SLY = """
import torch
from torch import nn

class Sly(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.linear = nn.Linear(shape[0], 4)
    def forward(self, x):
        return self.linear(x) if x.sum().item() > 0 else self.linear(-x)

net = Sly
"""


def write_program(folder: Path, name: str, text: str) -> str:
    """Write a program to a file; return what names its function."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    return f"{folder / name}.py:net"
