"""What is raised of a model that cannot be served.

The errors are values' errors: a model is an argument, by its path or its content. What goes wrong in
a running engine is in `engine/border/types.py`.
"""

from __future__ import annotations


class ModelError(ValueError):
    """The model cannot be served: it is damaged, incomplete or of a kind that is not served.

    The message names the file, and in it the field or the tensor, and says why.
    """
