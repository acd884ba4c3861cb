"""What `tablecast pipelines` understands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tablecast.cli.options import Interval, Watch, on_target
from tablecast.cli.target import Target

pipelines_app = typer.Typer(
    name="pipelines",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Keep pipelines running on Spark, and look at them.",
    epilog="Example: tablecast pipelines run http://127.0.0.1:8080",
)

_PIPELINES = "Only these: names of the catalog, or Python files with decorated functions (default: all of the catalog)."
_MASTER = "Where Spark runs: local[*], spark://…, yarn, k8s://…"
_CHECKPOINTS = "Where progress is kept, a directory per pipeline. On a cluster: one that all its machines see."


@pipelines_app.command(epilog="Example: tablecast pipelines run http://127.0.0.1:8080 app.revenue --once")
@on_target
def run(
    target: Target,
    pipelines: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME|FILE.py]…", help=_PIPELINES, show_default=False)
    ] = None,
    master: Annotated[str, typer.Option("--master", help=_MASTER)] = "local[*]",
    checkpoints: Annotated[Path, typer.Option("--checkpoints", metavar="DIR", help=_CHECKPOINTS)] = Path(
        "tablecast-checkpoints"
    ),
    once: Annotated[bool, typer.Option("--once", help="Work off what is there, and leave; 1 if one failed.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart-from-start", help="Forget the progress of those that are named, and begin anew.")
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark, as often as needed.")
    ] = None,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="debug|info|warning|error", help="The least that is logged.")
    ] = "info",
) -> None:
    """Keep pipelines running until SIGTERM or Ctrl-C.

    A server is asked what is to run: START, STOP, CREATE and DROP PIPELINE take effect within a second or so. A directory
    is served by this process meanwhile, on a port of this machine.
    """
    if restart and not pipelines:
        raise typer.BadParameter("--restart-from-start takes the names of the pipelines: it forgets their progress")
    from tablecast.cli.pipelines import Request, run_pipelines

    raise typer.Exit(
        run_pipelines(
            Request(
                target, tuple(pipelines or ()), master, checkpoints, once, restart, tuple(settings or ()), log_level
            )
        )
    )


@pipelines_app.command("list", epilog="Example: tablecast pipelines list http://127.0.0.1:8080 --watch")
@on_target
def list_pipelines(target: Target, watch: Watch = False, interval: Interval = 2.0) -> None:
    """List the pipelines: state, rows, lag, last error."""
    from tablecast.cli.pipelines_table import show_pipelines

    show_pipelines(target, interval if watch else None)
