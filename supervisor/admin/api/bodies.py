"""The body of a request over the queue: JSON, which is the payload, or a file, whose path goes into it."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from supervisor.admin.uploads import NoSpool, Received, Uploads, is_file, media_type
from supervisor.domain.errors import InvalidJob
from supervisor.domain.intake import once_key, payload_of
from supervisor.domain.job import NewJob
from supervisor.domain.spool import payload_of_file

DOCUMENT: dict[str, Any] = {
    "requestBody": {
        "content": {
            "application/json": {
                "schema": {
                    "title": "Payload",
                    "description": "The payload: any JSON of at most 1 MiB and 64 levels; default `{}`.",
                }
            },
            "application/octet-stream": {
                "schema": {
                    "type": "string",
                    "format": "binary",
                    "title": "File",
                    "description": "A file, with its own media type, such as `image/jpeg`; not those that forms have. "
                    'The payload is `{"path": …, "media_type": …}`, and what `fields` adds.',
                }
            },
        }
    }
}
"""For OpenAPI: FastAPI would read a body that it knows of into memory."""


async def requested(
    request: Request, uploads: Uploads | None, job: NewJob, fields: str | None
) -> tuple[NewJob, Received | None]:
    """The job that a request asks for, with its payload, and the file that this names.

    Raises InvalidJob, and for a file what `Uploads.receive` does. With an error, nothing is left of the file.
    """
    if not is_file(request.method, request.url.path, request.headers):
        if fields is not None:
            raise InvalidJob("fields", "it is for a body that is a file; put them into the payload")
        return job._replace(payload=payload_of(await _json(request))), None
    if uploads is None:
        raise NoSpool
    # Before a byte is read: what is refused afterwards has been uploaded in vain.
    _payload(request, "", fields)
    file = await uploads.receive(request, job.type, partial(_unique_key, job.unique_key))
    return job._replace(payload=_payload(request, file.path, fields), unique_key=file.unique_key), file


def _payload(request: Request, path: str, fields: str | None) -> str:
    made = payload_of_file(path, media_type(request.headers) or "", fields)
    return payload_of(made)


def _unique_key(given: str | None, token: str) -> str:
    """Of a request without an idempotency key, that of its file: the job must be found by it, and by nobody else. No
    header has a key with a space.
    """
    return given or once_key(f" {token}")


async def _json(request: Request) -> Any:
    """The value of the body; None without one. As FastAPI reads it, with the same errors."""
    body = await request.body()
    if not body:
        return None
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        problem = {"type": "json_invalid", "loc": ("body", error.pos), "msg": "", "ctx": {"error": error.msg}}
        raise RequestValidationError([problem]) from None
    except (ValueError, RecursionError):
        raise HTTPException(400, "There was an error parsing the body") from None
