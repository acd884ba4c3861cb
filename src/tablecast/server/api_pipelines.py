"""What runners of pipelines report: kept in memory, shown in system.pipelines."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from tablecast.core.rights import require
from tablecast.engine.pipelines import PipelineReport, check_report
from tablecast.errors import InvalidPipeline
from tablecast.model.names import full_name, read_name
from tablecast.model.schema import Role
from tablecast.server.answers import accepted, answer
from tablecast.server.bodies import Decoder
from tablecast.server.call import Call

MAX_PIPELINE_NAME_CHARS = 127  # namespace.name, each of 63 at most

_report = Decoder(PipelineReport)


class ReportAnswer(msgspec.Struct, frozen=True):
    """What is wished of the pipeline: running, stopped, or unknown if the catalog has none of this name."""

    desired_state: str


async def report(call: Call) -> Response:
    require(call.who, Role.SERVICE, "reporting on a pipeline")
    said, _ = await call.decoded(_report)
    said_name = read_name(call.path["name"])
    name = full_name(said_name, "")
    if len(name) > MAX_PIPELINE_NAME_CHARS or said_name.namespace is None:
        raise InvalidPipeline(f"{name[:60]!r} is no pipeline's name: it is namespace.name", pipeline=name[:60])
    check_report(said)
    engine = call.services.db.engine
    engine.pipeline_reports.put(name, said)
    pipeline = engine.catalog.pipelines.get(name)
    wished = "unknown" if pipeline is None else "running" if pipeline.running else "stopped"
    return answer(ReportAnswer(wished), accepted(call.headers))
