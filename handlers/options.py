"""The contents of a pool's `options = { … }` table, checked once when a worker starts."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator


class _Strict(BaseModel):
    """Values are not converted, and there is no other option."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class PictureOptions(_Strict):
    """The options that every picture handler takes.

    `max_bytes` limits the file or download, `max_pixels` width × height, before anything is decoded.
    `url_timeout` is the time for a whole download in seconds. `allow_private_hosts` also lets URLs reach
    loopback, link-local and private networks, which is safe only if every payload is trusted. With `root`,
    only files in that folder can be read, wherever symbolic links lead.
    """

    root: str | None = Field(default=None, min_length=1)
    allow_urls: bool = False
    allow_private_hosts: bool = False
    max_bytes: int = Field(default=64 << 20, ge=1, le=1 << 30)
    # A pixel takes four bytes, two or three times while it is decoded: a file of 50 KB can need half a
    # gigabyte. Pillow rejects pictures above 178 million pixels in any case.
    max_pixels: int = Field(default=50_000_000, ge=1, le=178_000_000)
    url_timeout: float = Field(default=15.0, gt=0, le=600)


class TagOptions(PictureOptions):
    """`threshold` is the minimum probability of a tag, `top_k` the maximum number of tags of a picture."""

    threshold: float = Field(default=0.2, ge=0, le=1)
    top_k: int = Field(default=5, ge=1, le=100)


class NsfwOptions(PictureOptions):
    """`threshold` is the probability from which a picture counts as not safe for work."""

    threshold: float = Field(default=0.5, ge=0, le=1)


class CaptionOptions(TagOptions):
    """`method` is "model" (with `model`) or "template"; `threshold` and `top_k` apply to the template.

    `model` is a directory or the name of a model on the hub, `revision` a commit or tag there. `prompt` is
    for models that continue a text. `max_new_tokens` limits the caption's length.
    """

    method: Literal["model", "template"] = "model"
    model: str | None = None
    revision: str | None = None
    prompt: str | None = None
    max_new_tokens: int = Field(default=40, ge=1, le=1000)
    top_k: int = Field(default=3, ge=1, le=100)


class PicturesOptions(_Strict):
    """A table for each type of job, with the options of the handler that serves only that type."""

    tag: TagOptions = TagOptions()
    caption: CaptionOptions = CaptionOptions()
    nsfw: NsfwOptions = NsfwOptions()


class MailOptions(_Strict):
    """The SMTP server. `timeout` is seconds for each step of the conversation with it.

    The password is read from the environment variable named by `password_env`, so that it is in no
    configuration file. It is sent only over an encrypted connection, unless `allow_plain_login` is set.
    """

    host: str = "localhost"
    port: int = Field(default=25, ge=1, le=65535)
    security: Literal["none", "starttls", "tls"] = "none"
    sender: str = ""
    username: str = ""
    password_env: str = ""
    allow_plain_login: bool = False
    max_recipients: int = Field(default=50, ge=1, le=10_000)
    timeout: float = Field(default=30.0, gt=0, le=600)


class HttpOptions(_Strict):
    """A webhook. With `url`, payloads may not name another one; with `allowed_hosts`, no host that is not among them,
    where `*.example.org` stands for all subdomains. `timeout` is seconds for the whole request, of which a payload may
    ask for less.

    The secret of the signature, and credentials in headers, are read from environment variables: `secret_env` names
    one, `headers_env` maps headers to theirs. `signature` is "default" or "standard" (standardwebhooks.com).
    `allow_private_hosts` also lets URLs reach loopback, link-local and private networks, which is safe only if every
    payload is trusted, or with `url`. A GET follows `max_redirects` redirects, each to an allowed address; others
    follow none. `max_bytes` of the answer are read.
    """

    url: str = ""
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    allowed_hosts: list[str] = Field(default_factory=list)
    secret_env: str = ""
    signature: Literal["default", "standard"] = "default"
    headers_env: dict[str, str] = Field(default_factory=dict)
    allow_private_hosts: bool = False
    max_redirects: int = Field(default=0, ge=0, le=10)
    max_bytes: int = Field(default=64 << 10, ge=0, le=1 << 20)
    timeout: float = Field(default=15.0, gt=0, le=600)


class EmbedOptions(_Strict):
    """`encoding` is that of the result: "list", numbers in JSON, or "base64", little-endian float32.

    `max_texts` limits the texts of one payload, `max_length` the characters of each.
    """

    encoding: Literal["list", "base64"] = "list"
    max_texts: int = Field(default=64, ge=1, le=1000)
    max_length: int = Field(default=20_000, ge=1, le=1_000_000)


class OcrOptions(PictureOptions):
    """`threshold` is the lowest confidence of a line. `longest_side` (pixels) is that of the picture in which lines are
    looked for. With `upside_down`, lines that stand on their head are read too.
    """

    threshold: float = Field(default=0.5, ge=0, le=1)
    longest_side: int = Field(default=1280, ge=64, le=4096)
    upside_down: bool = False


class SpeechOptions(_Strict):
    """`max_seconds` limits a recording, `max_bytes` its file. With `root`, only files in that folder can be read.

    `beam_size` above 1 is slower and a little more accurate. With `skip_silence`, only the parts that contain speech
    are transcribed. `model` is a folder with a Whisper model in CTranslate2's format, `language` its code ("de").
    """

    root: str | None = Field(default=None, min_length=1)
    max_bytes: int = Field(default=64 << 20, ge=1, le=1 << 30)
    max_seconds: float = Field(default=600.0, gt=0, le=14_400)
    beam_size: int = Field(default=1, ge=1, le=10)
    skip_silence: bool = True
    model: str | None = Field(default=None, min_length=1)
    language: str | None = Field(default=None, min_length=2)


class ThumbnailOptions(PictureOptions):
    """`folder` is where thumbnails are written; it is required. Each of `sizes` (pixels) makes one.

    `fit` is "contain" (no side is longer than the size) or "cover" (a square, cut from the middle). `quality` is that
    of JPEG and WebP.
    """

    folder: str = ""
    sizes: list[Annotated[int, Field(ge=8, le=4096)]] = Field(default=[256], min_length=1, max_length=10)
    format: Literal["webp", "jpeg", "png"] = "webp"
    quality: int = Field(default=80, ge=1, le=100)
    fit: Literal["contain", "cover"] = "contain"


class ShellOptions(_Strict):
    """`allow` lists the programs that payloads may start, as absolute paths, or is "any"; without it none starts.

    With `shell`, a payload may have a command line for /bin/sh; that needs "any". `timeout` is seconds, `max_output`
    bytes of each of stdout and stderr. `environment` lists the variables that a program inherits. Exit codes in `final`
    fail for good; the others are retried.
    """

    allow: list[str] | Literal["any"] = Field(default=[], validate_default=True)
    shell: bool = False
    folder: str | None = Field(default=None, min_length=1)
    environment: list[str] = Field(default=["PATH", "LANG", "HOME", "TZ"])
    timeout: float = Field(default=60.0, gt=0, le=86_400)
    max_output: int = Field(default=64 << 10, ge=0, le=1 << 20)
    final: list[int] = Field(default=[])

    @field_validator("allow", mode="plain")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if value == "any":
            return value
        if not isinstance(value, list) or not value:
            raise ValueError('no program may be started: name some, like ["/usr/bin/pdftotext"], or set "any"')
        for program in value:
            if not isinstance(program, str) or not program.startswith("/"):
                raise ValueError(f"must have absolute paths, not {program!r}")
        return value

    @field_validator("shell")
    @classmethod
    def _shell_is_any_program(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("allow", "any") != "any":
            raise ValueError('a shell can start every program: it needs allow = "any"')
        return value


Options = TypeVar("Options", bound=BaseModel)
Handler = TypeVar("Handler")

_RULES = {
    "string_type": "must be text in quotes",
    "string_too_short": "must not be empty",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "dict_type": "must be a table",
    "list_type": "must be a list",
    "too_short": "must not be empty",
    "model_type": "must be a table",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "greater_than": "must be greater than {gt}",
}


class OptionsError(ValueError):
    """What is wrong with a pool's options: `faults` has a key, as a path, and a sentence for each."""

    def __init__(self, faults: Sequence[tuple[tuple[str, ...], str]]) -> None:
        super().__init__("; ".join(f"options.{'.'.join(key)}: {text}" for key, text in faults))
        self.faults = faults


def checked_by(
    model: type[Options], needs: Callable[[Options], None] = lambda options: None
) -> Callable[[Handler], Handler]:
    """Give a handler a `check_options`: `supervisor check` calls it, and a worker before its set-up.

    `needs` raises an ImportError or a ValueError if a library or a file is missing that a set-up with these options
    needs. It imports and loads nothing, so that a check is quick.
    """

    def mark(handler: Handler) -> Handler:
        marked: Any = handler
        marked.check_options = staticmethod(lambda table: needs(read(model, table)))
        return handler

    return mark


def folder(key: str, path: Path) -> Path:
    """The folder that an option names. Raises OptionsError if there is none."""
    try:
        if path.is_dir():
            return path
        problem = "there is no folder"
    except OSError as error:
        problem = f"{error.strerror}:"
    raise OptionsError([((key,), f"{problem} {path.absolute()}")])


def read(model: type[Options], table: Mapping[str, Any]) -> Options:
    """The pool's options as a checked value. Raises OptionsError with one line that names every error."""
    try:
        return model.model_validate(dict(table))
    except ValidationError as error:
        raise OptionsError([_fault(model, fault) for fault in error.errors()]) from None


def _fault(model: type[BaseModel], error: Any) -> tuple[tuple[str, ...], str]:
    key = tuple(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key[-1], _known(model, key[:-1]), n=1)
        return key, "there is no such option" + (f"; did you mean {near[0]}?" if near else "")
    if error["type"] in _RULES:
        return key, f"{_RULES[error['type']].format(**error.get('ctx', {}))}, not {error['input']!r}"
    return key, str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "must be", 1)


def _known(model: type[BaseModel], tables: Sequence[str]) -> list[str]:
    """The names of the options in a table of tables."""
    for name in tables:
        inner: Any = model.model_fields[name].annotation
        model = inner
    return list(model.model_fields)
