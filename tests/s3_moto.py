"""moto's S3 server with conditional puts that are atomic: `python -m tests.s3_moto -H HOST -p PORT`.

moto looks whether an object exists and then stores it, in threads. Two commits of one version that meet in between are
both accepted, about once in some hundred rounds on a busy machine; a lake refuses such a store, and rightly.
"""

import sys
from threading import Lock
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_put_object = S3Response.put_object
_putting = Lock()


def put_object(self: S3Response) -> Any:
    with _putting:
        return _put_object(self)


if __name__ == "__main__":
    S3Response.put_object = put_object  # type: ignore[method-assign,unused-ignore]
    main(sys.argv[1:])
