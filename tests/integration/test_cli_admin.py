"""`tablecast verify`, `backup` and `restore`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_fixture import Terminals, csv_lines, invoke, run, shop

from tablecast.errors import BackupError
from tablecast.storage.base import Family
from tablecast.storage.reserve import RESERVE
from tablecast.storage.restore import restore
from tablecast.storage.rocks import RocksStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return shop(tmp_path)


@pytest.fixture
def terminals() -> Iterator[Terminals]:
    with Terminals() as opened:
        yield opened


def test_verify_a_sound_database(path: Path) -> None:
    done = run("verify", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "tables 2, rows 2, topics 1, messages 5, group positions 0, topics equal to their tables 1: sound\n"
    )


def damage(path: Path) -> None:
    """Takes away all messages, as if nothing had ever been told."""
    store = RocksStore.open(str(path))
    batch = store.batch()
    batch.delete_range(Family.LOG, b"", b"\xff")
    store.write(batch)
    store.sync()
    store.close()


def test_verify_names_the_problem_first(path: Path) -> None:
    damage(path)
    done = invoke("verify", path)
    assert done.exit_code == 1
    first, *_, last = done.stdout.splitlines()
    assert re.fullmatch(r"the write of app.orders \S+ in commit \d+ is not on app.order_events", first)
    assert last.endswith(": not sound")


def test_backup_and_restore(path: Path, tmp_path: Path) -> None:
    copy, again = tmp_path / "monday", tmp_path / "again"
    backed_up = run("backup", path, copy)
    assert (backed_up.returncode, backed_up.stderr) == (0, "")
    assert backed_up.stdout.startswith(f"backed up to {copy} (")
    run("sql", path, "-c", "DELETE FROM app.orders")
    restored = run("restore", copy, again)
    assert (restored.returncode, restored.stderr) == (0, "")
    figures, where = restored.stdout.splitlines()
    assert figures.endswith(": sound")
    assert where.startswith(f"restored to {again} (")
    for database in (copy, again):
        assert csv_lines(database, "SELECT count(*) AS n FROM app.orders") == ["n", "2"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again", "monday", "shop"]


def test_a_taken_target_is_refused(path: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    for command in ("backup", "restore"):
        done = invoke(command, path, taken)
        assert done.exit_code == 1
        assert done.stderr.startswith(f"error [backup_error]: {taken} exists already")
    assert list(taken.iterdir()) == []


@pytest.mark.parametrize("missing", ["TABLECAST", "SYNCED", "store"])
def test_an_incomplete_backup_is_refused(missing: str, path: Path, tmp_path: Path) -> None:
    away = path / missing
    shutil.rmtree(away) if away.is_dir() else away.unlink()
    done = invoke("restore", path, tmp_path / "target", "--no-verify")
    assert done.exit_code == 1
    assert f"is not a complete backup: {missing} is missing" in done.stderr
    assert not (tmp_path / "target").exists()


def test_a_backup_that_was_never_finished_is_refused(path: Path, tmp_path: Path) -> None:
    (path / "TABLECAST").write_text('{"format":1,"created_by":"0.1.0","creating":true}')
    done = invoke("restore", path, tmp_path / "target", "--no-verify")
    assert "TABLECAST says that it was never finished" in done.stderr


def test_an_unsound_backup_is_not_restored_unless_told_so(path: Path, tmp_path: Path) -> None:
    damage(path)
    done = invoke("restore", path, tmp_path / "target")
    assert done.exit_code == 1
    assert "is not sound, so nothing was restored: " in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["shop"]
    assert invoke("restore", path, tmp_path / "target", "--no-verify").exit_code == 0
    assert (tmp_path / "target").is_dir()


def test_restoring_counts_bytes_up_to_the_total(path: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    restore(path, tmp_path / "target", lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    total = sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and file.name != RESERVE)
    assert seen[-1] == (total, total)


def test_a_backup_that_changes_while_it_is_copied_is_refused(path: Path, tmp_path: Path) -> None:
    def write_meanwhile(done: int, total: int) -> None:
        (path / "store" / "000999.log").write_bytes(b"x" * done)

    with pytest.raises(BackupError, match="changed while it was copied"):
        restore(path, tmp_path / "target", write_meanwhile)
    assert [p.name for p in tmp_path.iterdir()] == ["shop"]


def test_an_interrupted_restore_leaves_nothing(path: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore(path, tmp_path / "target", interrupt)
    assert [p.name for p in tmp_path.iterdir()] == ["shop"]


def test_long_work_shows_a_bar_on_a_terminal(path: Path, tmp_path: Path, terminals: Terminals) -> None:
    for args, shown in (
        (("backup", path, tmp_path / "copy"), ["copying"]),
        (("restore", tmp_path / "copy", tmp_path / "again"), ["copying", "messages"]),
        (("verify", path), ["rows", "messages", "5/5"]),
    ):
        command = terminals.open(*args)
        for text in shown:
            command.expect(text)
        assert command.end()[0] == 0
