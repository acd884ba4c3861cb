"""Pipelines as Python: decorated functions of DataFrames, in a file that is kept where code is kept.

    from tablecast.spark import pipeline, table, topic

    @pipeline(into="app.revenue_by_day", inputs={"orders": topic("app.order_events"), "customers": table("app.customers")})
    def revenue(orders, customers):
        return orders.join(customers, …).groupBy(…).agg(…)

`tablecast pipelines run FILE.py` finds and runs them. A function is called once, when its pipeline starts; what it
returns is the plan for every batch.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tablecast.errors import InvalidPipeline
from tablecast.model.names import full_name, full_name_of, read_name
from tablecast.model.pipeline import InputKind, Pipeline, PipelineInput, PipelineMode, PipelineOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Function = Callable[..., "DataFrame"]


@dataclass(frozen=True, slots=True)
class Input:
    kind: InputKind
    name: str


def topic(name: str) -> Input:
    """The messages of a topic, as a stream."""
    return Input(InputKind.TOPIC, _full(name, "topic"))


def table(name: str) -> Input:
    """The rows of a table, as they are when a batch begins."""
    return Input(InputKind.TABLE, _full(name, "table"))


def _full(name: str, what: str) -> str:
    """The full name."""
    read = read_name(name)
    if read.namespace is None:
        raise InvalidPipeline(f"{what} {name!r}: write namespace.{what}", name=name)
    return full_name(read, read.namespace)


def _own_name(name: str) -> tuple[str, str]:
    """A pipeline of a file is in no catalog: its name is a label, which its checkpoint is kept under, as it is."""
    namespace, _, bare = name.partition(".")
    if not namespace or not bare or "." in bare:
        raise InvalidPipeline(f"pipeline {name!r}: write namespace.pipeline", name=name)
    return namespace, bare


@dataclass(frozen=True)
class Declared:
    """A decorated function; it can still be called as one."""

    pipeline: Pipeline
    function: Function = field(repr=False)

    def __call__(self, *args: Any, **named: Any) -> DataFrame:
        return self.function(*args, **named)

    @property
    def text(self) -> str:
        """What it does, without comments and layout: another text is another pipeline."""
        try:
            source = textwrap.dedent(inspect.getsource(self.function))
        except (OSError, TypeError):
            return self.function.__qualname__
        return ast.dump(ast.parse(source))


def pipeline(
    *,
    into: str,
    inputs: Mapping[str, Input],
    mode: str = PipelineMode.UPSERT,
    name: str | None = None,
    trigger_seconds: float = 1.0,
    starting: str = "earliest",
    dead_letter: str | None = None,
    watermark: str | None = None,
    checkpoint: str | None = None,
    max_messages: int | None = None,
    fail_on_data_loss: bool = True,
) -> Callable[[Function], Declared]:
    """Makes a pipeline of a function whose parameters are named like `inputs`.

    Its name is that of the function, in the target's namespace, unless `name` gives another. The other arguments are the
    options of CREATE PIPELINE.
    """
    into = _full(into, "table")
    namespace = into.partition(".")[0]
    if mode not in list(PipelineMode):
        raise InvalidPipeline(f"mode {mode!r} is unknown: use one of {', '.join(PipelineMode)}", mode=mode)
    if starting not in ("earliest", "latest"):
        raise InvalidPipeline(f"starting {starting!r}: it is earliest or latest")
    if not any(given.kind is InputKind.TOPIC for given in inputs.values()):
        raise InvalidPipeline(f"a pipeline into {into} reads no topic: topic(…) is what makes it run")
    letters = None if dead_letter is None else full_name_of(dead_letter)
    options = PipelineOptions(
        trigger_seconds, starting, letters, watermark, checkpoint, max_messages, fail_on_data_loss
    )

    def declared(function: Function) -> Declared:
        _check_parameters(function, inputs)
        space, bare = _own_name(name) if name else (namespace, function.__name__)
        named = tuple(PipelineInput(given.kind, given.name, view) for view, given in inputs.items())
        return Declared(Pipeline(space, bare, into, PipelineMode(mode), "", named, options), function)

    return declared


def _check_parameters(function: Function, inputs: Mapping[str, Input]) -> None:
    try:
        inspect.signature(function).bind(**dict.fromkeys(inputs))
    except TypeError as error:
        raise InvalidPipeline(
            f"{function.__qualname__}() does not take its inputs {', '.join(inputs)}: {error}"
        ) from None


def load_file(path: Path) -> list[Declared]:
    """The pipelines of a file, in their order there. Raises InvalidPipeline if it has none or cannot be run."""
    module_name = f"tablecast_pipelines_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise InvalidPipeline(f"{path} cannot be read as a Python file", path=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise InvalidPipeline(f"{path} cannot be run: {type(error).__name__}: {error}", path=str(path)) from error
    _ship(module)
    found = [value for value in vars(module).values() if isinstance(value, Declared)]
    if not found:
        raise InvalidPipeline(f"{path} has no function with the decorator tablecast.spark.pipeline", path=str(path))
    return found


def _ship(module: Any) -> None:
    """Executors have no such file: what their functions use of it travels with them."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
