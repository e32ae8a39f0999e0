"""Which artifacts a result may have: their names, content types, links and number. Raises InvalidRequest."""

import re
import unicodedata
from collections.abc import Sequence

from codeq.domain import limits, validation
from codeq.domain.artifacts import OCTET_STREAM, ArtifactInput
from codeq.domain.errors import InvalidRequest

_NOT_IN_NAMES = frozenset('/\\<>:"|?*\ufffd')
"""Separators, what Windows does not allow, and what bytes that are not UTF-8 were replaced by."""
_RESERVED = re.compile(r"(?:con|conin\$|conout\$|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(?:\.|\Z)", re.IGNORECASE)
_WORD = r"[A-Za-z0-9!#$&^_.+\-]{1,64}"
_CONTENT_TYPE = re.compile(rf'{_WORD}/{_WORD}(?: *; *{_WORD}=(?:{_WORD}|"[ !#-\[\]-~]{{0,64}}"))*')
_SHA256 = re.compile(r"[0-9a-f]{64}")


def artifact_name(value: str) -> str:
    """Checks a name: one that is a file name on every system, and is written in one way only.

    Format characters are refused because they hide or reorder what a person sees, and names that are not in Unicode's
    normal form C because they look like others that are.
    """
    reason = _fault_of_name(value) if isinstance(value, str) else "it is not text"
    if reason:
        raise InvalidRequest(f"an artifact cannot be called {str(value)[:80]!a}: {reason}")
    return value


def _fault_of_name(name: str) -> str | None:
    if not 1 <= len(name.encode("utf-8", "replace")) <= limits.ARTIFACT_NAME_BYTES_MAX:
        return f"a name has 1 to {limits.ARTIFACT_NAME_BYTES_MAX} bytes"
    if not name.isprintable() or not _NOT_IN_NAMES.isdisjoint(name):
        return 'no separators, no control or format characters, none of <>:"|?*'
    if name[0] == " " or name[-1] in " .":
        return "no space at its ends, no dot at its end"
    if _RESERVED.match(name):
        return "Windows reserves this name"
    if not unicodedata.is_normalized("NFC", name):
        return "write it in Unicode's normal form C"
    return None


def content_type(value: str | None) -> str:
    if value is None:
        return OCTET_STREAM
    is_short = isinstance(value, str) and len(value) <= limits.CONTENT_TYPE_CHARS_MAX
    if not is_short or not _CONTENT_TYPE.fullmatch(value):
        raise InvalidRequest(f"a content type is like text/csv; charset=utf-8, not {str(value)[:80]!a}")
    return value


def check_inputs(inputs: Sequence[ArtifactInput], most: int) -> None:
    """Checks everything that can be known of a result's artifacts before anything is stored."""
    if most and len(inputs) > most:
        raise InvalidRequest(f"a result has at most {most} artifacts, not {len(inputs)}")
    seen: dict[str, str] = {}
    for each in inputs:
        folded = unicodedata.normalize("NFC", artifact_name(each.name).casefold())
        if folded in seen:
            raise InvalidRequest(f"artifacts of one result differ by more than case: {seen[folded]!a}, {each.name!a}")
        seen[folded] = each.name
        content_type(each.content_type)
        if each.url is not None:
            validation.url(each.url, "the url of an artifact")
        if each.url is not None and (each.content is not None or each.sha256 is not None):
            raise InvalidRequest("an artifact has content or a url, not both")
        if each.sha256 is not None and not _SHA256.fullmatch(each.sha256):
            raise InvalidRequest("sha256 has 64 hexadecimal digits in lower case")
