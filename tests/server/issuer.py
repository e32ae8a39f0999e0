"""An issuer of tokens: real keys, and their public set served over HTTP, with every fetch counted."""

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER = "https://issuer.test"
PRODUCERS, WORKERS = "codeq-producers", "codeq-workers"
ALL_WORKER_SCOPES = "codeq:claim codeq:heartbeat codeq:abandon codeq:nack codeq:result codeq:subscribe"

_KINDS: dict[str, Any] = {
    "RS256": jwt.algorithms.RSAAlgorithm,
    "ES256": jwt.algorithms.ECAlgorithm,
    "EdDSA": jwt.algorithms.OKPAlgorithm,
}


def key_pair(kid: str, algorithm: str = "RS256") -> Any:
    """Returns a private key; the same one for the same name."""
    return _made(kid, algorithm)


@cache
def _made(kid: str, algorithm: str) -> Any:
    if algorithm == "RS256":
        return rsa.generate_private_key(65_537, 2048)
    return ec.generate_private_key(ec.SECP256R1()) if algorithm == "ES256" else ed25519.Ed25519PrivateKey.generate()


def public_entry(kid: str, algorithm: str = "RS256") -> dict[str, Any]:
    """Returns the key's entry in the public set."""
    shown = _KINDS[algorithm].to_jwk(key_pair(kid, algorithm).public_key(), as_dict=True)
    return {**shown, "kid": kid, "alg": algorithm, "use": "sig"}


def lifetime() -> dict[str, Any]:
    """Returns the claims that make a token valid for ten minutes from now. A table of claims that is made when tests
    are collected may be used after that."""
    now_s = int(time.time())
    return {"iat": now_s, "exp": now_s + 600}


def claims(audience: str = PRODUCERS, **changed: Any) -> dict[str, Any]:
    """Returns the claims of a valid token; None leaves a claim out."""
    token_claims = {"iss": ISSUER, "aud": audience, "sub": "somebody", "tid": "acme", **lifetime()}
    return {name: value for name, value in (token_claims | changed).items() if value is not None}


def worker_claims(**changed: Any) -> dict[str, Any]:
    return claims(WORKERS, **({"scope": ALL_WORKER_SCOPES, "eventTypes": ["*"]} | changed))


def sign(token_claims: dict[str, Any], kid: str | None = "rsa", algorithm: str = "RS256", **header: Any) -> str:
    """Returns a valid token. `kid` names the key."""
    headers = ({"kid": kid} if kid is not None else {}) | header
    return jwt.encode(token_claims, key_pair(kid or "rsa", algorithm), algorithm=algorithm, headers=headers)


def encoded(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def by_hand(header: Any, token_claims: Any, signing: Callable[[bytes], bytes]) -> str:
    """Returns a token that no library would make."""
    text = f"{encoded(header)}.{encoded(token_claims)}"
    return f"{text}.{encoded(signing(text.encode()))}"


def settings_for(url: str) -> dict[str, Any]:
    """Returns settings that trust the keys at `url`, with different audiences for producers and workers."""

    def provider(audience: str) -> dict[str, Any]:
        token_claims = {"jwksUrl": url, "issuer": ISSUER, "audience": audience, "clockSkewSeconds": 5}
        return {"provider": "jwks", "config": token_claims}

    return {"auth": {"producer": provider(PRODUCERS), "worker": provider(WORKERS)}}


class Issuer:
    """Serves `document` at `url`, or `answer` instead: status, headers and body."""

    def __init__(self) -> None:
        self.keys = {"rsa": "RS256", "ed": "EdDSA", "ec": "ES256"}
        self.extra: list[Any] = []
        self.answer: tuple[int, dict[str, str], bytes] | None = None
        self.delay = threading.Event()
        self.delay.set()
        self.fetches = 0
        self.paths: list[str] = []
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetches += 1
                issuer.paths.append(self.path)
                issuer.delay.wait(20)
                status, headers, body = issuer.answer or (200, {"Content-Type": "application/json"}, issuer.document)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def handle(self) -> None:
                with suppress(ConnectionError):
                    super().handle()

            def log_message(self, *_: Any) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/keys"

    @property
    def document(self) -> bytes:
        entries = [public_entry(kid, algorithm) for kid, algorithm in self.keys.items()]
        return json.dumps({"keys": [*entries, *self.extra]}).encode()

    def settings(self) -> dict[str, Any]:
        return settings_for(self.url)

    @contextmanager
    def context(self) -> Iterator["Issuer"]:
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.delay.set()
            self._http.shutdown()
            self._http.server_close()
            thread.join()
