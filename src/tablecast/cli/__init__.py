"""The command line: `tablecast …`.

`app` declares the commands, their options and help texts; one module per group of commands does the work. A
command's module, and with it the database, is imported when the command runs: `tablecast --help` waits for neither.
"""

from __future__ import annotations


def main() -> None:
    from tablecast.cli.app import app

    app(prog_name="tablecast")
