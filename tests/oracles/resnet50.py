"""ResNet-50 in torch: He et al. 2016 (arXiv 1512.03385), table 1.

The stride of a block stands in its 3 x 3 convolution ("v1.5", as MLPerf and torchvision have it).
"""

from typing import Any

import torch
from torch import nn

IMAGE = (3, 224, 224)
CLASSES = 1000


def convolution(inputs: int, outputs: int, window: int, stride: int = 1) -> Any:
    made = nn.Conv2d(inputs, outputs, window, stride, padding=window // 2, bias=False)
    return nn.ModuleDict({"convolution": made, "norm": nn.BatchNorm2d(outputs)})


def through(one: Any, x: Any) -> Any:
    return one["norm"](one["convolution"](x))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.narrow = convolution(inputs, width, 1)
        self.middle = convolution(width, width, 3, stride)
        self.wide = convolution(width, outputs, 1)
        other = stride > 1 or inputs != outputs
        self.shortcut = convolution(inputs, outputs, 1, stride) if other else None

    def forward(self, x: Any) -> Any:
        found = torch.relu(through(self.narrow, x))
        found = torch.relu(through(self.middle, found))
        kept = x if self.shortcut is None else through(self.shortcut, x)
        return torch.relu(through(self.wide, found) + kept)


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = convolution(3, 64, 7, 2)
        blocks, inputs = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            width = 64 * 2**stage
            for i in range(count):
                blocks.append(Bottleneck(inputs, width, 2 if stage and not i else 1))
                inputs = 4 * width
        self.blocks = nn.ModuleList(blocks)
        self.classifier = nn.Linear(inputs, CLASSES)

    def forward(self, images: Any, labels: Any) -> Any:
        x = torch.relu(through(self.stem, images))
        x = nn.functional.max_pool2d(x, 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        scores = self.classifier(x.mean((2, 3)))
        return nn.functional.cross_entropy(scores.float(), labels)


def example(batch: int = 2) -> Any:
    return torch.empty(batch, *IMAGE), torch.empty(batch, dtype=torch.long)
