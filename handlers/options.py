"""What a pool's `options = { … }` table may hold, checked once when a worker starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class PictureOptions(BaseModel):
    """The options that every picture handler takes.

    `max_bytes` bounds the file or download, `max_pixels` width × height, before anything is decoded.
    `url_timeout` is the time for a whole download in seconds. `allow_private_hosts` also lets URLs reach
    loopback, link-local and private networks, which is right only where every payload is trusted. With `root`,
    paths are of files in that folder alone, wherever symbolic links lead.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    root: str | None = Field(default=None, min_length=1)
    allow_urls: bool = False
    allow_private_hosts: bool = False
    max_bytes: int = Field(default=64 << 20, ge=1, le=1 << 30)
    # A pixel takes four bytes, twice or three times while it is decoded: a file of 50 KB can ask for half a
    # gigabyte. Pillow refuses pictures above 178 million pixels whatever we say.
    max_pixels: int = Field(default=50_000_000, ge=1, le=178_000_000)
    url_timeout: float = Field(default=15.0, gt=0, le=600)


class TagOptions(PictureOptions):
    """`threshold` is the least probability of a tag, `top_k` the most tags of a picture."""

    threshold: float = Field(default=0.2, ge=0, le=1)
    top_k: int = Field(default=5, ge=1, le=100)


class NsfwOptions(PictureOptions):
    """`threshold` is the probability from which a picture counts as not safe for work."""

    threshold: float = Field(default=0.5, ge=0, le=1)


class CaptionOptions(TagOptions):
    """`method` is "model" (with `model`) or "template"; `threshold` and `top_k` serve the template.

    `model` is a directory or the name of a model on the hub, `revision` a commit or tag there. `prompt` is
    for models that continue a text. `max_new_tokens` bounds the caption's length.
    """

    method: Literal["model", "template"] = "model"
    model: str | None = None
    revision: str | None = None
    prompt: str | None = None
    max_new_tokens: int = Field(default=40, ge=1, le=1000)
    top_k: int = Field(default=3, ge=1, le=100)


class PicturesOptions(BaseModel):
    """A table for each type of job, with the options of the handler that serves it alone."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    tag: TagOptions = TagOptions()
    caption: CaptionOptions = CaptionOptions()
    nsfw: NsfwOptions = NsfwOptions()


class MailOptions(BaseModel):
    """Where mail is handed over. `timeout` is seconds for each step of the conversation with the server.

    The password is read from the environment variable named by `password_env`, so that it stands in no
    configuration file. It is sent over an encrypted connection alone, unless `allow_plain_login` says otherwise.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    host: str = "localhost"
    port: int = Field(default=25, ge=1, le=65535)
    security: Literal["none", "starttls", "tls"] = "none"
    sender: str = ""
    username: str = ""
    password_env: str = ""
    allow_plain_login: bool = False
    max_recipients: int = Field(default=50, ge=1, le=10_000)
    timeout: float = Field(default=30.0, gt=0, le=600)


Options = TypeVar("Options", bound=BaseModel)


def read(model: type[Options], table: Mapping[str, Any]) -> Options:
    """The pool's options as a checked value. Raises ValueError with one line that names every fault."""
    try:
        return model.model_validate(dict(table))
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise ValueError("the pool's options cannot be used: " + "; ".join(faults)) from None
