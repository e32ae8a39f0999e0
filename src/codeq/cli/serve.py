"""`codeq serve`, `codeq token` and `codeq config`: run the service, and set it up."""

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from codeq.cli.connect import examples
from codeq.domain.errors import InvalidRequest

config_app = typer.Typer(no_args_is_help=True, help="Check the settings, or list them.")
ConfigFile = Annotated[Path | None, typer.Option("--config", envvar="CODEQ_CONFIG", help="Settings in YAML.")]


def add_to(app: typer.Typer) -> None:
    app.command("serve", epilog=examples(_SERVE))(serve)
    app.command("token", epilog=examples("codeq token --tenant acme --role worker --commands resize --ttl 8h"))(token)
    app.add_typer(config_app, name="config")


_TTL = re.compile(r"(\d{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def serve(
    dev: Annotated[bool, typer.Option("--dev", help="Loopback only, with a key of its own and `dev-token`.")] = False,
    data: Annotated[Path | None, typer.Option(help="Data directory; ./data if not said anywhere.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 picks a free one.")] = None,
    config: ConfigFile = None,
) -> None:
    """Run the service until it is told to stop (SIGTERM, Ctrl-C)."""
    from codeq.server import main

    flags = {"store.path": str(data) if data else None, "http.host": host, "http.port": port}
    raise typer.Exit(main.run(_load(config, flags), is_dev=dev))


def token(
    tenant: Annotated[str, typer.Option(help="Whose tasks.")],
    role: Annotated[str, typer.Option(help="producer, worker or admin.")],
    data: Annotated[Path, typer.Option(help="Data directory of a server started with --dev.")] = Path("./data"),
    subject: Annotated[str | None, typer.Option(help="Who; a worker's name. The role if not said.")] = None,
    commands: Annotated[str, typer.Option(help="What a worker may do, comma separated; all if not said.")] = "",
    scopes: Annotated[str | None, typer.Option(help="Comma separated; those of the role if not said.")] = None,
    ttl: Annotated[str, typer.Option(help="How long it is good, such as 30m, 1h or 7d.")] = "1h",
) -> None:
    """Print a token for a development server."""
    from codeq.domain import validation
    from codeq.server import dev

    found = _TTL.fullmatch(ttl)
    if not found:
        raise InvalidRequest(f"--ttl is a number and s, m, h or d, not {ttl!r}")
    print(
        dev.make_token(
            data,
            tenant=validation.name(tenant, "tenant"),
            role=role,
            subject=subject or role,
            commands=[command for command in commands.split(",") if command],
            scopes=None if scopes is None else [scope for scope in scopes.split(",") if scope],
            ttl_s=int(found[1]) * _SECONDS[found[2]],
        )
    )


@config_app.command("check", epilog=examples("codeq config check --config codeq.yaml"))
def config_check(
    config: ConfigFile = None,
    dev: Annotated[bool, typer.Option("--dev", help="As for `codeq serve --dev`.")] = False,
) -> None:
    """Say everything that is wrong with the settings, or that they are good."""
    from codeq.server import main

    main.check(_load(config, {}), is_dev=dev)
    print("the settings are good")


@config_app.command("reference", epilog=examples("codeq config reference > settings.md"))
def config_reference() -> None:
    """List every setting, as Markdown."""
    from codeq.server import settings

    print(settings.reference(), end="")


def _load(config: Path | None, flags: dict[str, Any]) -> Any:
    from codeq.server import settings

    return settings.load(config, os.environ, flags)


_SERVE = """
codeq serve --dev --data ./data
codeq serve --config codeq.yaml
"""
