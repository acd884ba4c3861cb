"""The dashboard, the alerts and the list of metrics in the docs speak of metrics and labels that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import tablecast
from tablecast.engine.live import HubStats
from tablecast.engine.live_told import Counts
from tablecast.engine.pipelines import PipelineReport
from tablecast.model.replication_status import ReplicationStatus
from tablecast.server.doorkeeper import DoorStats
from tablecast.server.metrics import Metrics
from tablecast.server.settings import Settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "observability.md"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "tablecast.json").read_text())
ALERTS = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())
FUNCTIONS = {
    "sum", "max", "topk", "rate", "increase", "delta", "predict_linear", "histogram_quantile", "label_values",
}  # fmt: skip
OF_PROMETHEUS = {"up"}  # a series that it makes itself: whether the scrape worked
ADDED_BY_PROMETHEUS = {"job", "instance"}  # and taken: a label of ours with such a name would be renamed

TOKEN = re.compile(
    r"""\s*(?:(?P<range>\[(?:\$__rate_interval|\d+[smhd])\])|(?P<text>"[^"]*")|(?P<number>\d+(?:\.\d+)?)
        |(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<op>=~|!~|!=|==|[-+*/<>=,(){}]))""",
    re.VERBOSE,
)


# --- what there is ---


class Carrier:
    """Replication, as far as metrics ask."""

    def status(self) -> ReplicationStatus:
        return ReplicationStatus("here")

    def watch(self) -> Iterator[ReplicationStatus]:
        return iter(())

    def stop(self) -> None:
        pass


@pytest.fixture(scope="module")
def series() -> dict[str, set[str]]:
    """Every series of a scrape after some of everything has happened, with the labels it has."""
    with tablecast.open(":memory:", jobs_interval_seconds=3600) as db:
        metrics = Metrics(db.engine)
        metrics.parked(lambda: 0)
        metrics.live(lambda: HubStats([], 0, 0, Counts()), lambda: 0)
        metrics.door(lambda: DoorStats(0, 0, 0, 0.0))
        db.execute("CREATE NAMESPACE app; CREATE TABLE app.orders (id BIGINT PRIMARY KEY)")
        db.execute("CREATE TOPIC app.events; ALTER TOPIC app.events ADD SOURCE app.orders ON INSERT")
        db.insert("app.orders", [{"id": i} for i in range(3)])
        for _ in range(2):
            found = db.consume("app.events", group="g", start=tablecast.EARLIEST).messages
            db.nack("app.events", "g", [message.offset for message in found])
        metrics.messages_out("app.events", len(found))
        metrics.request("POST", "/v1/api/sql", 200, 0.01)
        metrics.error("sql_syntax")
        db.run_job("claims")
        report = PipelineReport(
            "running", "here:1", positions={"app.events": [1]}, of_file=True,
            input_rows_per_second=1.0, processed_rows_per_second=2.0,
        )  # fmt: skip
        db.engine.pipeline_reports.put("app.p", report)
        db.engine.replication.carrier = Carrier()
        families = list(text_string_to_metric_families(metrics.render().decode()))
    found_series: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            found_series.setdefault(sample.name, set()).update(sample.labels)
    return found_series


# --- what is asked for ---


def expressions() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]
    for line in DOCS.read_text().split("### What to be woken for")[1].split("\n## ")[0].splitlines():
        if line.startswith("| `"):
            yield "alert", line.split("`")[1]
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def tokens(expression: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(expression.rstrip()):
        found = TOKEN.match(expression, at)
        assert found is not None, f"not PromQL at {expression[at:]!r}"
        assert found.lastgroup is not None
        yield found.lastgroup, found[found.lastgroup]
        at = found.end()


def asked(expression: str) -> tuple[dict[str, set[str]], set[str]]:
    """The series an expression asks for, each with the labels in its braces, and the labels it groups by."""
    found: dict[str, set[str]] = {}
    grouped: set[str] = set()
    open_brackets: list[str] = []
    last = ""
    is_grouping = False
    for kind, text in tokens(expression):
        if text in ("(", "{"):
            open_brackets.append(text)
        elif text in (")", "}"):
            assert open_brackets and open_brackets.pop() + text in ("()", "{}"), f"brackets of {expression}"
            is_grouping = False
        elif kind == "name" and text == "by":
            is_grouping = True
        elif kind == "name" and is_grouping:
            grouped.add(text)
        elif kind == "name" and open_brackets[-1:] == ["{"]:
            found[last].add(text)
        elif kind == "name" and text not in FUNCTIONS and expression.startswith("label_values") and found:
            grouped.add(text)
        elif kind == "name" and text not in FUNCTIONS:
            last = text
            found.setdefault(text, set())
    assert not open_brackets, f"brackets of {expression}"
    return found, grouped


@pytest.mark.parametrize(("title", "expression"), list(expressions()))
def test_every_expression_asks_for_what_there_is(title: str, expression: str, series: dict[str, set[str]]) -> None:
    found, grouped = asked(expression)
    assert found, f"{title}: {expression} asks for nothing"
    for name, labels in found.items():
        if name in OF_PROMETHEUS:
            continue
        assert name in series, f"{title}: there is no {name}"
        unknown = (labels | grouped) - series[name] - ADDED_BY_PROMETHEUS
        assert not unknown, f"{title}: {name} has no label {unknown}"


@pytest.mark.parametrize(
    "expression",
    ["sum(rate(tablecast_errors_total[5m])", "tablecast_errors_total{code}}", "tablecast_errors_total ? 1"],
)
def test_a_broken_expression_is_noticed(expression: str) -> None:
    with pytest.raises(AssertionError):
        asked(expression)


def test_the_reader_of_expressions_reads_them() -> None:
    """The test above is only as good as this."""
    expression = 'sum by (le, route) (rate(a_bucket{instance=~"$instance"}[$__rate_interval])) / max(b{code="x"}) > 0.5'
    assert asked(expression) == ({"a_bucket": {"instance"}, "b": {"code"}}, {"le", "route"})


def test_an_alert_names_labels_that_are_left(series: dict[str, set[str]]) -> None:
    for rule in ALERTS["groups"][0]["rules"]:
        found, grouped = asked(rule["expr"])
        shown = set(re.findall(r"{{ \$labels\.(\w+) }}", rule["annotations"]["summary"]))
        left = grouped if " by " in rule["expr"] else set().union(*(series.get(name, set()) for name in found))
        assert shown <= left | ADDED_BY_PROMETHEUS, rule["alert"]


def test_a_legend_names_labels_that_are_left() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            found, grouped = asked(target["expr"])
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            if " by " in target["expr"]:
                assert shown <= grouped, f"{panel['title']}: {shown} of {grouped}"
            elif target["expr"].startswith("sum"):
                assert not shown, f"{panel['title']}: a sum has no labels"
            assert found


def test_panels_do_not_cover_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in DASHBOARD["panels"]:
        place: dict[str, Any] = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_no_label_of_ours_is_one_that_prometheus_adds(series: dict[str, set[str]]) -> None:
    assert not [name for name, labels in series.items() if labels & ADDED_BY_PROMETHEUS]


# --- the docs ---


def documented() -> dict[str, tuple[str, set[str]]]:
    """Name → type and labels, as the tables of the page say."""
    found = {}
    for line in DOCS.read_text().splitlines():
        row = re.match(r"\| `((?:tablecast|replication|process)_\w+)` \| (\w+) \| ([\w, ]*) ?\|", line)
        if row:
            found[row[1]] = row[2], {label.strip() for label in row[3].split(",") if label.strip()}
    return found


def test_the_page_lists_every_metric_with_its_labels(series: dict[str, set[str]]) -> None:
    expected = {}
    for name, (kind, labels) in documented().items():
        if kind == "histogram":
            expected |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            assert kind == ("counter" if name.endswith("_total") else "gauge"), name
            expected[name] = labels
    assert expected == series


# --- the other files of deploy/ ---


def test_the_unit_leaves_time_to_drain() -> None:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "deploy" / "tablecast.service")
    assert " serve " in unit["Service"]["ExecStart"]
    assert unit["Service"]["KillSignal"] == "SIGTERM"
    assert int(unit["Service"]["TimeoutStopSec"]) > Settings().drain_seconds
    assert int(unit["Service"]["LimitNOFILE"]) > Settings().max_connections
