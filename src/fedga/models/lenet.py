"""LeNet as the paper uses it for CIFAR-10 and SVHN: ReLU and max pooling (62,006 parameters for 3×32×32, 10 classes).

LeCun, Bottou, Bengio and Haffner 1998.
"""

from torch import Tensor, nn

from fedga.errors import FedGAError


class LeNet(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        if len(input_shape) != 3 or min(input_shape[1:]) < 16:
            shape = "×".join(map(str, input_shape))
            small = f"of at least 16×16 pixels and the samples are {shape}"
            raise FedGAError(f"model lenet needs pictures {small}: use --model mlp")
        channels, height, width = input_shape
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2)
        after_pools = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
        self.fc1 = nn.Linear(16 * after_pools[0] * after_pools[1], 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        # The larger of two values passes ReLU as the larger: pooling first leaves a quarter of the work to ReLU.
        features = self.pool(self.conv1(inputs)).relu()
        features = self.pool(self.conv2(features)).relu()
        features = self.fc1(features.flatten(1)).relu()
        return self.fc3(self.fc2(features).relu())
