"""Which server does a command call, and with which token? Registers commands with the options that decide it."""

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from codeq.cli import profile_file
from codeq.cli.errors import UsageError
from codeq.cli.output import Output
from codeq.cli.profile_file import Profile
from codeq.domain.errors import InvalidRequest
from codeq.wire.errors import Unauthenticated
from codeq.wire.local_server import DEFAULT_URL, DEV_TOKEN, is_loopback

if TYPE_CHECKING:
    import codeq

RETRY_S = 2.0
"""How long a command retries while the server does not answer, before it fails."""

PANEL = "Server"
Url = Annotated[
    str | None,
    typer.Option(
        "--url", "--endpoint", help=f"Address of the server [CODEQ_URL; {DEFAULT_URL}].", rich_help_panel=PANEL
    ),
]
TokenText = Annotated[
    str | None,
    typer.Option(
        "--token", help="Token [CODEQ_TOKEN]. Other users may see it; prefer --token-file.", rich_help_panel=PANEL
    ),
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="File that contains the token.", rich_help_panel=PANEL)
]
ProfileName = Annotated[
    str | None,
    typer.Option("--profile", help="Name of a profile [CODEQ_PROFILE; see codeq profile].", rich_help_panel=PANEL),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_SERVER_OPTIONS: dict[str, Any] = {"url": Url, "token": TokenText, "token_file": TokenFile, "profile": ProfileName}


class Endpoint:
    """A server's address and the token for it: a text, a function that reads it, or None."""

    def __init__(self, url: str | None, token: "str | Callable[[], str] | None") -> None:
        self.url = url or DEFAULT_URL
        self.token = token
        self.is_explicit = url is not None
        """Whether an option, a variable or a profile named the server."""

    @property
    def is_loopback(self) -> bool:
        return is_loopback(urlsplit(self.url).hostname or "")

    def client(self, *, retry_s: float = RETRY_S) -> "codeq.Client":
        from codeq.sdk.client import Client
        from codeq.sdk.transport import address_of

        try:
            address_of(self.url)
        except InvalidRequest as fault:
            raise UsageError(str(fault)) from None
        if self.token is None:
            raise Unauthenticated(f"there is no token for {self.url}")
        return Client(self.url, self.token, retry_for=retry_s)


class ServerFlags(NamedTuple):
    """The options of the command line that name a server and a token."""

    url: str | None
    token: str | None
    token_file: Path | None
    profile: str | None

    @property
    def names_server(self) -> bool:
        return self.url is not None or self.profile is not None

    @property
    def names_token(self) -> bool:
        return self.token is not None or self.token_file is not None

    def endpoint(self, url: str | None = None) -> Endpoint:
        """What the options, variables and profiles say; or this address, with the token of the options."""
        return resolve_endpoint(url=url or self.url, token=self.token, token_file=self.token_file, profile=self.profile)


class FileToken:
    """A token that is read from its file at each use, because files are renewed while a command runs."""

    def __init__(self, file: Path) -> None:
        self.file = file.expanduser().absolute()
        self()

    def __call__(self) -> str:
        return self.file.read_text().strip()


def resolve_endpoint(
    *,
    url: str | None = None,
    token: str | None = None,
    token_file: Path | None = None,
    profile: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Endpoint:
    """Decides by options, then variables, then the profile in use, then the default address.

    `--profile` is an option and wins over variables. A profile's token is sent to the profile's own address only.
    """
    selected = _profile(profile, environ)
    variables: Mapping[str, str] = {} if profile else environ
    address = url or variables.get("CODEQ_URL") or (selected.url if selected else None)
    bearer: str | Callable[[], str] | None = token
    if bearer is None and token_file is not None:
        bearer = FileToken(token_file)
    if bearer is None:
        bearer = variables.get("CODEQ_TOKEN") or None
    if bearer is None and selected and selected.url == address:
        bearer = _token_of(selected, environ)
    endpoint = Endpoint(address, bearer)
    if bearer is None and endpoint.is_loopback:
        endpoint.token = DEV_TOKEN
    return endpoint


def remote(
    app: typer.Typer, name: str, *, example: str, retry_s: float = RETRY_S
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a function `(client, out, ...)` as a command, with the options of the server and `--json` added."""

    def add(run: Callable[..., None]) -> Callable[..., None]:
        def command(**options: Any) -> None:
            server = {option: options.pop(option) for option in _SERVER_OPTIONS}
            out = Output(is_json=options.pop("json"))
            with resolve_endpoint(**server).client(retry_s=retry_s) as client:
                run(client, out, **options)

        own = list(inspect.signature(run).parameters.values())[2:]
        return _register(app, name, command, run, own=own, extra={**_SERVER_OPTIONS, "json": Json}, example=example)

    return add


def with_server_flags(
    app: typer.Typer, name: str, *, example: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a function `(flags, ...)` as a command that decides itself what the options of the server mean."""

    def add(run: Callable[..., None]) -> Callable[..., None]:
        def command(**options: Any) -> None:
            run(ServerFlags(**{option: options.pop(option) for option in _SERVER_OPTIONS}), **options)

        own = list(inspect.signature(run).parameters.values())[1:]
        return _register(app, name, command, run, own=own, extra=_SERVER_OPTIONS, example=example)

    return add


def local(app: typer.Typer, name: str, *, example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a function `(out, ...)` as a command that needs no server, with `--json` added."""

    def add(run: Callable[..., None]) -> Callable[..., None]:
        def command(**options: Any) -> None:
            run(Output(is_json=options.pop("json")), **options)

        own = list(inspect.signature(run).parameters.values())[1:]
        return _register(app, name, command, run, own=own, extra={"json": Json}, example=example)

    return add


def examples(text: str) -> str:
    """Examples for the end of a help page, one per line, with brackets escaped from markup."""
    lines = [line.strip().replace("[", "\\[") for line in text.strip().splitlines()]
    return "\n\n".join([f"Example{'s' if len(lines) > 1 else ''}:", *(f"  {line}" for line in lines)])


def _register(
    app: typer.Typer,
    name: str,
    command: Callable[..., None],
    run: Callable[..., None],
    *,
    own: list[inspect.Parameter],
    extra: Mapping[str, Any],
    example: str,
) -> Callable[..., None]:
    """Gives `command` a signature of the `own` parameters of `run` and the `extra` options, for Typer to read."""
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(option, kind, default=False if option == "json" else None, annotation=hint)
        for option, hint in extra.items()
    ]
    functools.update_wrapper(command, run)
    del command.__wrapped__  # type: ignore[attr-defined]
    parameters = [parameter.replace(kind=kind) for parameter in own] + added
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(name, epilog=examples(example))(command)
    return run


def _profile(name: str | None, environ: Mapping[str, str]) -> Profile | None:
    stored = profile_file.load(profile_file.location(environ))
    selected = name or environ.get("CODEQ_PROFILE") or stored.default
    return stored.named(selected) if selected else None


def _token_of(profile: Profile, environ: Mapping[str, str]) -> "str | Callable[[], str] | None":
    if profile.token_file:
        return FileToken(Path(profile.token_file))
    if profile.token_env:
        if profile.token_env not in environ:
            raise Unauthenticated(f"the token of the profile is in the variable {profile.token_env}, which is not set")
        return environ[profile.token_env]
    return profile.token
