"""The main job, end to end: what `tablecast demo` does. It is part of the package, in tablecast/cli/demo.py."""

from __future__ import annotations

import sys

from tablecast.cli.app import app

if __name__ == "__main__":
    app(["demo", *sys.argv[1:]], prog_name="tablecast")
