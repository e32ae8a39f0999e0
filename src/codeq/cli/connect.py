"""Which server a command speaks to, as whom, and how: what all commands that need a server have in common."""

import functools
import inspect
import ipaddress
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from codeq.cli import profile_file
from codeq.cli.errors import Misuse
from codeq.cli.output import Output
from codeq.cli.profile_file import Profile
from codeq.domain.errors import InvalidRequest
from codeq.wire.errors import Unauthenticated

if TYPE_CHECKING:
    import codeq

DEFAULT_URL = "http://127.0.0.1:8080"
DEV_TOKEN = "dev-token"  # noqa: S105 - no secret: development servers alone accept it, and on loopback alone
RETRY_S = 2.0
"""How long a person waits for a server that does not answer, before hearing of it."""

PANEL = "Server"
Url = Annotated[
    str | None,
    typer.Option(
        "--url", "--endpoint", help=f"Address of the server [CODEQ_URL; {DEFAULT_URL}].", rich_help_panel=PANEL
    ),
]
TokenText = Annotated[
    str | None,
    typer.Option("--token", help="Your token [CODEQ_TOKEN]. Others may see it: prefer a file.", rich_help_panel=PANEL),
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="File that holds your token.", rich_help_panel=PANEL)
]
ProfileName = Annotated[
    str | None,
    typer.Option("--profile", help="A profile [CODEQ_PROFILE; see codeq profile].", rich_help_panel=PANEL),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]

_SERVER_OPTIONS: dict[str, Any] = {"url": Url, "token": TokenText, "token_file": TokenFile, "profile": ProfileName}


class Server:
    """Where to call, and with which token: a text, or a function that reads it anew; None if there is none."""

    def __init__(self, url: str | None, token: "str | Callable[[], str] | None") -> None:
        self.url = url or DEFAULT_URL
        self.token = token
        self.is_named = url is not None
        """Whether anyone said which server, or it is just the usual address."""

    @property
    def is_loopback(self) -> bool:
        host = urlsplit(self.url).hostname or ""
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def client(self, *, retry_s: float = RETRY_S) -> "codeq.Client":
        from codeq.sdk.client import Client
        from codeq.sdk.transport import address_of

        try:
            address_of(self.url)
        except InvalidRequest as fault:
            raise Misuse(str(fault)) from None
        if self.token is None:
            raise Unauthenticated(f"there is no token for {self.url}")
        return Client(self.url, self.token, retry_for=retry_s)


def choose(
    *,
    url: str | None = None,
    token: str | None = None,
    token_file: Path | None = None,
    profile: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Server:
    """The server that is meant: flags, then the environment, then the profile in use, then the one on this machine.

    A profile named by a flag is a flag, and wins over the environment. A profile's token goes to the profile's own
    address and to no other.
    """
    chosen, from_environ = _profile(profile, environ), environ
    if profile:
        from_environ = {}
    address = url or from_environ.get("CODEQ_URL") or (chosen.url if chosen else None)
    known: str | Callable[[], str] | None = token
    if known is None and token_file is not None:
        known = KeptToken(token_file)
    if known is None:
        known = from_environ.get("CODEQ_TOKEN") or None
    if known is None and chosen and chosen.url == address:
        known = _token_of(chosen, environ)
    server = Server(address, known)
    if known is None and server.is_loopback:
        server.token = DEV_TOKEN
    return server


def remote(
    app: typer.Typer, name: str, *, example: str, retry_s: float = RETRY_S, has_lease: bool = False, **given: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function `(client, out, ...)`: it gets the options that choose a server, and `--json`.

    `has_lease` leaves out `--token`, which means the token of the lease in such a command.
    """

    def add(run: Callable[..., None]) -> Callable[..., None]:
        extra = dict(_SERVER_OPTIONS)
        if has_lease:
            del extra["token"]

        def command(**options: Any) -> None:
            where = {option: options.pop(option) for option in extra}
            out = Output(is_json=options.pop("json"))
            with choose(**where).client(retry_s=retry_s) as client:
                run(client, out, **options)

        own = list(inspect.signature(run).parameters.values())[2:]
        return register(app, name, command, run, own=own, extra={**extra, "json": Json}, example=example, **given)

    return add


def local(
    app: typer.Typer, name: str, *, example: str, **given: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function `(out, ...)` that needs no server."""

    def add(run: Callable[..., None]) -> Callable[..., None]:
        def command(**options: Any) -> None:
            run(Output(is_json=options.pop("json")), **options)

        own = list(inspect.signature(run).parameters.values())[1:]
        return register(app, name, command, run, own=own, extra={"json": Json}, example=example, **given)

    return add


def register(
    app: typer.Typer,
    name: str,
    command: Callable[..., None],
    run: Callable[..., None],
    *,
    own: list[inspect.Parameter],
    extra: Mapping[str, Any],
    example: str,
    **given: Any,
) -> Callable[..., None]:
    """Tell Typer of a command whose options are those of `run` and the `extra` ones."""
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
    app.command(name, epilog=examples(example), **given)(command)
    return run


def examples(text: str) -> str:
    """Examples for the end of a help page, one per line; brackets are no markup there."""
    lines = [line.strip().replace("[", "\\[") for line in text.strip().splitlines()]
    return "\n\n".join([f"Example{'s' if len(lines) > 1 else ''}:", *(f"  {line}" for line in lines)])


def _profile(name: str | None, environ: Mapping[str, str]) -> Profile | None:
    known = profile_file.load(profile_file.location(environ))
    wanted = name or environ.get("CODEQ_PROFILE") or known.default
    return known.named(wanted) if wanted else None


def _token_of(profile: Profile, environ: Mapping[str, str]) -> "str | Callable[[], str] | None":
    if profile.token_file:
        return KeptToken(Path(profile.token_file))
    if profile.token_env:
        if profile.token_env not in environ:
            raise Unauthenticated(
                f"the profile takes its token from the variable {profile.token_env}, which is not set"
            )
        return environ[profile.token_env]
    return profile.token


class KeptToken:
    """Read again whenever it is asked for: files are renewed while a command runs."""

    def __init__(self, file: Path) -> None:
        self.file = file.expanduser().absolute()
        self()

    def __call__(self) -> str:
        return self.file.read_text().strip()
