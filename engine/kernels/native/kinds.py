"""The kinds of norm and of activation function that a product takes; the values are those of the C++ sources."""

from __future__ import annotations

from enum import IntEnum


class NormKind(IntEnum):
    """What is done to a row of inputs before it is multiplied."""

    NONE = 0
    RMS = 1  # Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019
    LAYER = 2  # Ba, Kiros and Hinton, "Layer Normalization", 2016


class Activation(IntEnum):
    """What is done to a product before it is stored."""

    NONE = 0
    SILU = 1
    GELU_TANH = 2  # the approximation of Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016
    GELU_ERF = 3
