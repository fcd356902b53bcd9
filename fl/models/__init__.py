"""Models by name: `build("softmax", features=784, classes=10)`.

All are ordinary torch modules. `register` adds a module of your own; its parameters must be its only state.
"""

from fl.models.registry import MODELS, build, build_from, parameters_of, register, size_of

__all__ = ["MODELS", "build", "build_from", "parameters_of", "register", "size_of"]
