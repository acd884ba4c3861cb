"""Calls of NOW(), SNOWFLAKE_ID(), UUID_V7(), CURRENT_USER() in statements: see `engine.generated` for their values.

In trees that are compiled, each such call becomes a parameter, so that the evaluator stays a pure function.
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from tablecast.engine.generated import StatementValues

GENERATED = ("now", "snowflake_id", "uuid_v7", "current_user")


def generator_name(node: exp.Expr) -> str | None:
    """Which generated value a call stands for, if any."""
    if isinstance(node, exp.CurrentTimestamp):
        return "now"
    if isinstance(node, exp.CurrentUser):
        return "current_user"
    if isinstance(node, exp.Anonymous | exp.Func):
        name = str(node.name if isinstance(node, exp.Anonymous) else node.sql_name()).lower()
        return name if name in GENERATED and not node.expressions else None
    return None


def lift_generated(
    tree: exp.Expr, first_number: int, lifted: tuple[str, ...] = GENERATED
) -> tuple[exp.Expr, list[str]]:
    """The tree with each generating call replaced by a parameter, numbered from `first_number` on, and their names."""
    names: list[str] = []
    if not any(generator_name(node) in lifted for node in tree.walk()):
        return tree, names

    def lift(node: exp.Expr) -> exp.Expr:
        name = generator_name(node)
        if name is None or name not in lifted:
            return node
        names.append(name)
        return exp.Placeholder(this=str(first_number + len(names) - 1))

    return tree.copy().transform(lift), names


def generate(values: StatementValues, names: list[str]) -> tuple[Any, ...]:
    return tuple(getattr(values, name)() for name in names)
