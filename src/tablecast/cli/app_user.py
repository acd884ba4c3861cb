"""What `tablecast user` understands. A password is typed, or piped in: it never is an argument."""

from __future__ import annotations

from typing import Annotated

import typer

from tablecast.cli.options import Format, RoleName, on_target
from tablecast.cli.target import Target

user_app = typer.Typer(
    name="user",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="List, add, change and drop users.",
    epilog="Example: tablecast user list http://127.0.0.1:8080",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user.", show_default=False)]


@user_app.command("list", epilog="Example: tablecast user list http://127.0.0.1:8080")
@on_target
def list_users(
    target: Target,
    output: Annotated[Format, typer.Option("--format", help="How the list is written.")] = Format.TABLE,
) -> None:
    """List the users: name, role, whether they can sign in, since when."""
    from tablecast.cli.user import show_users

    show_users(target, output)


@user_app.command(epilog="Example: tablecast user add http://127.0.0.1:8080 ann --role service")
@on_target
def add(
    target: Target,
    name: Name,
    role: Annotated[RoleName, typer.Option("--role", help="What the user may do.")] = RoleName.USER,
) -> None:
    """Make a user. The password is asked for twice, or is the first line of standard input."""
    from tablecast.cli.user import add_user

    add_user(target, name, role)


@user_app.command(epilog="Example: tablecast user passwd http://127.0.0.1:8080 ann < new-password")
@on_target
def passwd(target: Target, name: Name) -> None:
    """Set a user's password, asked for twice or from standard input. Signs the user out everywhere."""
    from tablecast.cli.user import set_password

    set_password(target, name)


@user_app.command(epilog="Example: tablecast user role http://127.0.0.1:8080 ann dba")
@on_target
def role(
    target: Target,
    name: Name,
    role: Annotated[RoleName, typer.Argument(help="What the user may do from now on.", show_default=False)],
) -> None:
    """Set a user's role. Signs the user out everywhere."""
    from tablecast.cli.user import set_role

    set_role(target, name, role)


@user_app.command(epilog="Example: tablecast user drop http://127.0.0.1:8080 ann")
@on_target
def drop(target: Target, name: Name) -> None:
    """Drop a user. Its rows in USER and STREAM tables stay."""
    from tablecast.cli.user import drop_user

    drop_user(target, name)
