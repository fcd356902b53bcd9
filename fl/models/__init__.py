"""Models to train, by name: `build("softmax", features=784, classes=10)`.

All are ordinary torch modules. A module of your own can be trained just as well, as long as its parameters
are all there is to it.
"""

from fl.models.registry import MODELS, SETUPS, ModelSetup, build, parameters_of, register, size_of, sizes

__all__ = ["MODELS", "SETUPS", "ModelSetup", "build", "parameters_of", "register", "size_of", "sizes"]
