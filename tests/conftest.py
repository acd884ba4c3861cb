"""How property tests run: without deadlines, with other examples each time, and with a way back to any failure."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "tablecast",
    deadline=None,  # a slow machine is not a wrong program
    derandomize=False,
    print_blob=True,  # what to paste into @reproduce_failure
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("tablecast"), max_examples=2_000)
settings.load_profile("tablecast")
