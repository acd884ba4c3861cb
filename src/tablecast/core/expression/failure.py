"""The one way in which computing a value fails."""

from __future__ import annotations


class Failure(ArithmeticError):
    """An overflow, a division by zero or a conversion that does not fit.

    Says what happened; `Expression` adds which expression it was and raises ExpressionError.
    """
