"""A program that writes rows and replicates them, made to be killed: `outage_child.py DIRECTORY URL ROWS`.

Goes on where it was: rows are numbered, and the next number is the count. Says `written N` after each piece that was
acknowledged, `done` when all are, and then waits to be killed.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from edge_nodes import node

PIECE = 500


def main(path: str, url: str, rows: str) -> None:
    with node(url, "sender", Path(path), compare_seconds=600) as db:  # what is sent keeps its order
        written = db.query("SELECT count(*) FROM app.notes").rows[0][0]
        while written < int(rows):
            db.insert("app.notes", [{"id": n, "body": f"row {n}"} for n in range(written, written + PIECE)])
            written += PIECE
            sys.stdout.write(f"written {written}\n")
            sys.stdout.flush()
        sys.stdout.write("done\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
