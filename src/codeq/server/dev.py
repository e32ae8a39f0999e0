"""The keys and tokens of a development server: an Ed25519 key in the data directory, and the fixed `dev-token`."""

import os
import time
from pathlib import Path
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from codeq.domain.errors import InvalidRequest
from codeq.server.auth.principal import EVERY_COMMAND, PRODUCER_SCOPES, WORKER_SCOPES
from codeq.wire.local_server import DEV_TOKEN

DEV_TENANT = "dev"
ISSUER, AUDIENCE = "codeq-dev", "codeq"
_KID = "dev-1"
_KEY_FILE, _JWKS_FILE = "dev-key.pem", "dev-jwks.json"

ROLES = ("producer", "worker", "admin")
ALL_SCOPES = sorted(PRODUCER_SCOPES | WORKER_SCOPES | {"codeq:admin", "codeq:events", "codeq:platform"})


def prepare(data: Path) -> bytes:
    """Creates the key if there is none, and returns the public set of keys."""
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    key_file = data / _KEY_FILE
    if not key_file.exists():
        made = Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        with os.fdopen(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(made)
    public = jwt.algorithms.OKPAlgorithm.to_jwk(_private_key(data).public_key(), as_dict=True)
    document = msgspec.json.encode({"keys": [{**public, "kid": _KID, "use": "sig", "alg": "EdDSA"}]})
    (data / _JWKS_FILE).write_bytes(document)
    return document


def auth_config(data: Path) -> dict[str, Any]:
    """Returns the settings that accept the fixed token, and tokens signed with the directory's key."""
    return {
        "providers": [
            {
                "type": "static",
                "config": {
                    "token": DEV_TOKEN,
                    "subject": "dev",
                    "scopes": ALL_SCOPES,
                    "eventTypes": [EVERY_COMMAND],
                    "raw": {"tid": DEV_TENANT},
                },
            },
            {
                "type": "jwks",
                "config": {"jwksFile": str(data / _JWKS_FILE), "issuer": ISSUER, "audience": AUDIENCE},
            },
        ]
    }


def make_token(
    data: Path,
    *,
    tenant: str,
    role: str,
    subject: str,
    commands: list[str],
    scopes: list[str] | None,
    ttl_s: int,
) -> str:
    """Returns a signed token for the server on this data directory."""
    if role not in ROLES:
        raise InvalidRequest(f"a role is one of {', '.join(ROLES)}, not {role!r}")
    now_s = int(time.time())
    if scopes is None:
        scopes = {"producer": [], "worker": sorted(WORKER_SCOPES), "admin": ["codeq:admin", "codeq:events"]}[role]
    claims: dict[str, Any] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": subject,
        "tid": tenant,
        "iat": now_s,
        "exp": now_s + ttl_s,
        "scope": " ".join(scopes),
    }
    if role == "worker":
        claims["eventTypes"] = commands or [EVERY_COMMAND]
    return jwt.encode(claims, _private_key(data), algorithm="EdDSA", headers={"kid": _KID})


def _private_key(data: Path) -> Ed25519PrivateKey:
    try:
        if (data / _KEY_FILE).stat().st_mode & 0o077:
            raise InvalidRequest(f"{data / _KEY_FILE} can be read by others; run: chmod 600 {data / _KEY_FILE}")
        key = serialization.load_pem_private_key((data / _KEY_FILE).read_bytes(), None)
    except FileNotFoundError:
        raise InvalidRequest(f"{data} has no key yet; start `codeq serve --dev --data {data}` once") from None
    except ValueError as fault:
        raise InvalidRequest(f"{data / _KEY_FILE} cannot be read: {fault}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidRequest(f"{data / _KEY_FILE} is not an Ed25519 key")
    return key
