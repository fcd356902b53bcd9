"""Models by name: `build("softmax", features=784, classes=10)`.

All are ordinary torch modules. A module of your own can be trained as well, if its parameters are its only
state; `register` gives it a name.
"""

from fl.models.registry import MODELS, build, parameters_of, register, size_of

__all__ = ["MODELS", "build", "parameters_of", "register", "size_of"]
