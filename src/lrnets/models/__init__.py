"""The networks of the paper, in float: `lrnets.convert_` makes them discrete."""

from lrnets.models.cifar10 import cifar10_vgg
from lrnets.models.mnist import mnist_net
from lrnets.models.resnet import resnet18

__all__ = ["cifar10_vgg", "mnist_net", "resnet18"]
