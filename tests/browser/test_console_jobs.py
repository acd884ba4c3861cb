"""Jobs and loads in the console."""

from __future__ import annotations

from console_stage import Console
from playwright.sync_api import expect
from server_fixture import ServerThread


def test_jobs_and_open_loads(console: Console, console_server: ServerThread) -> None:
    console_server.sql("CREATE NAMESPACE app; CREATE TABLE app.orders (id INT PRIMARY KEY)")
    console.sign_in(route="jobs")
    expect(console.page.get_by_text("No loads are under way")).to_be_visible()
    retention = console.page.get_by_role("grid", name="Jobs").get_by_role("row").filter(has_text="retention")
    expect(retention).to_be_visible()
    before = retention.get_by_role("gridcell").nth(4).text_content()
    console_server.db.database.run_job("retention")
    expect(retention.get_by_role("gridcell").nth(4)).not_to_have_text(str(before))
    load = console_server.post("/loads", {"table": "app.orders", "writer_id": "the-loader", "batch_id": 3})
    assert load.status == 200, load.body
    loads = console.page.get_by_role("grid", name="Loads")
    expect(loads.get_by_role("row").filter(has_text="the-loader")).to_contain_text("app.orders")
    console.looks("jobs")
