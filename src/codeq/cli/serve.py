"""`codeq serve`, `codeq token` and `codeq config`: runs and configures a server."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from codeq.cli.connect import examples
from codeq.cli.errors import needs_extra
from codeq.cli.parameters import duration
from codeq.domain.errors import InvalidRequest

config_app = typer.Typer(no_args_is_help=True, help="Check or list the settings of a server.")
ConfigFile = Annotated[Path | None, typer.Option("--config", envvar="CODEQ_CONFIG", help="File of settings, in YAML.")]


def add_to(app: typer.Typer) -> None:
    app.command("serve", epilog=examples(_SERVE))(serve)
    app.command("token", epilog=examples("codeq token --tenant acme --role worker --commands resize --ttl 8h"))(token)
    app.add_typer(config_app, name="config")


def serve(
    dev: Annotated[bool, typer.Option("--dev", help="Development: loopback only, accepts `dev-token`.")] = False,
    data: Annotated[Path | None, typer.Option(help="Data directory; default: ./data.")] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Redis instead of a directory, redis://host:6379/0; with --dev, `redis` starts one."
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 picks a free one.")] = None,
    config: ConfigFile = None,
) -> None:
    """Run a server until SIGTERM or Ctrl-C."""
    main, read_settings = _server_modules()

    flags = {"store.path": str(data) if data else None, "store.url": store, "http.host": host, "http.port": port}
    if dev and store == "redis":
        from codeq.server.dev_redis import running_redis

        with running_redis((data or Path("./data")) / "redis") as url:
            settings = _load(config, flags | {"store.url": url})
            raise typer.Exit(main.run(settings, is_dev=dev, warnings=read_settings.warnings(os.environ)))
    if store == "redis":
        raise InvalidRequest("`--store redis` starts a Redis of its own, with --dev only; give an address: redis://...")
    raise typer.Exit(main.run(_load(config, flags), is_dev=dev, warnings=read_settings.warnings(os.environ)))


def token(
    tenant: Annotated[str, typer.Option(help="Tenant of the token.")],
    role: Annotated[str, typer.Option(help="producer, worker or admin.")],
    data: Annotated[Path, typer.Option(help="Data directory of a server started with --dev.")] = Path("./data"),
    subject: Annotated[str | None, typer.Option(help="Subject, such as a worker's name; default: the role.")] = None,
    commands: Annotated[str, typer.Option(help="Commands of a worker, comma separated; default: all.")] = "",
    scopes: Annotated[str | None, typer.Option(help="Scopes, comma separated; default: those of the role.")] = None,
    ttl: Annotated[str, typer.Option(metavar="DURATION", help="How long the token is valid.")] = "1h",
) -> None:
    """Print a token for a development server."""
    from codeq.domain import validation

    with needs_extra("server", "a server"):
        from codeq.server import dev

    try:
        ttl_s = round(duration(ttl))
    except typer.BadParameter as fault:  # not left to Typer, which would end with another exit code
        raise InvalidRequest(f"--ttl: {fault}") from None
    print(
        dev.make_token(
            data,
            tenant=validation.tenant(tenant),
            role=role,
            subject=subject or role,
            commands=[command for command in commands.split(",") if command],
            scopes=None if scopes is None else [scope for scope in scopes.split(",") if scope],
            ttl_s=ttl_s,
        )
    )


@config_app.command("check", epilog=examples("codeq config check --config codeq.yaml"))
def config_check(
    config: ConfigFile = None,
    dev: Annotated[bool, typer.Option("--dev", help="Check as for `codeq serve --dev`.")] = False,
) -> None:
    """Print all errors in the settings, or that there are none."""
    main, read_settings = _server_modules()

    main.check(_load(config, {}), is_dev=dev)
    for warning in read_settings.warnings(os.environ):
        print(f"codeq: warning: {warning}", file=sys.stderr)
    print("the settings are valid")


@config_app.command("reference", epilog=examples("codeq config reference > settings.md"))
def config_reference() -> None:
    """Print all settings, as Markdown."""
    from codeq.cli.reference import page

    print(page("settings"), end="")


def _server_modules() -> tuple[Any, Any]:
    """Imports what a server is made of. It needs more packages than clients and workers do."""
    with needs_extra("server", "a server"):
        from codeq.server import main, read_settings
    return main, read_settings


def _load(config: Path | None, flags: dict[str, Any]) -> Any:
    from codeq.server import read_settings

    return read_settings.load(config, os.environ, flags)


_SERVE = """
codeq serve --dev --data ./data
codeq serve --dev --store redis
codeq serve --config codeq.yaml --store redis://127.0.0.1:6379/0
codeq serve --config codeq.yaml
"""
