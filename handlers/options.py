"""The contents of a pool's `options = { … }` table, checked once when a worker starts.

The tables of docs/handlers.md are made of these classes.
"""

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
    """The options that every picture handler takes."""

    root: str | None = Field(
        default=None,
        min_length=1,
        description="the only folder whose files may be read, wherever symbolic links lead; relative paths start there",
    )
    allow_urls: bool = Field(
        default=False, description="payloads may have a `url` (http or https) in place of the `path`"
    )
    allow_private_hosts: bool = Field(
        default=False,
        description="URLs may reach loopback, link-local and private networks: only if you trust every payload",
    )
    max_bytes: int = Field(default=64 << 20, ge=1, le=1 << 30, description="of the file or download")
    # A pixel takes four bytes, two or three times while it is decoded: a file of 50 KB can need half a
    # gigabyte. Pillow rejects pictures above 178 million pixels in any case.
    max_pixels: int = Field(
        default=50_000_000, ge=1, le=178_000_000, description="width × height, checked before anything is decoded"
    )
    url_timeout: float = Field(default=15.0, gt=0, le=600, description="seconds for a whole download")


class TagOptions(PictureOptions):
    """Those of pictures, and which tags are returned."""

    threshold: float = Field(default=0.2, ge=0, le=1, description="the lowest probability of a tag")
    top_k: int = Field(default=5, ge=1, le=100, description="the greatest number of tags")


class NsfwOptions(PictureOptions):
    """Those of pictures, and a limit."""

    threshold: float = Field(default=0.5, ge=0, le=1, description="the probability from which `is_nsfw` is true")


class CaptionOptions(TagOptions):
    """Those of pictures and of the model; `threshold` and `top_k` are for the template."""

    method: Literal["model", "template"] = Field(
        default="model", description='or `"template"`, which uses `threshold` and `top_k`'
    )
    model: str | None = Field(default=None, description="a directory, or the name of a model on the hub")
    revision: str | None = Field(default=None, description="a commit or tag of the model on the hub")
    prompt: str | None = Field(default=None, description="for models that continue a text")
    max_new_tokens: int = Field(default=40, ge=1, le=1000, description="the longest caption")
    top_k: int = Field(default=3, ge=1, le=100, description="the greatest number of tags")


class PicturesOptions(_Strict):
    """A table for each type of job, with the options of the handler that serves only that type."""

    tag: TagOptions = TagOptions()
    caption: CaptionOptions = CaptionOptions()
    nsfw: NsfwOptions = NsfwOptions()


class MailOptions(_Strict):
    """The SMTP server. The password is in an environment variable, so that it is in no configuration file."""

    host: str = Field(default="localhost", description="the SMTP server")
    port: int = Field(default=25, ge=1, le=65535, description="of the server")
    security: Literal["none", "starttls", "tls"] = Field(default="none", description='or `"starttls"`, `"tls"`')
    sender: str = Field(default="", description="the address in `From`; if empty, `job-supervisor@` and the host")
    username: str = Field(default="", description="logs in if set")
    password_env: str = Field(default="", description="the environment variable that contains the password")
    allow_plain_login: bool = Field(default=False, description="sends the password even over an unencrypted connection")
    max_recipients: int = Field(
        default=50, ge=1, le=10_000, description="a payload with more of them fails permanently"
    )
    timeout: float = Field(default=30.0, gt=0, le=600, description="seconds for each step of the conversation")


class HttpOptions(_Strict):
    """A webhook. Secrets are in environment variables, so that they are in no configuration file."""

    url: str = Field(default="", description="the only address; payloads must not name another one")
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = Field(
        default="POST", description='or `"GET"`, `"PUT"`, `"PATCH"`, `"DELETE"`'
    )
    allowed_hosts: list[str] = Field(
        default_factory=list, description='the only hosts that are reached; `"*.example.org"` allows all subdomains'
    )
    secret_env: str = Field(default="", description="the environment variable with the secret of the signature")
    signature: Literal["default", "standard"] = Field(default="default", description='or `"standard"`')
    headers_env: dict[str, str] = Field(
        default_factory=dict, description="headers, and the environment variables with their values"
    )
    allow_private_hosts: bool = Field(
        default=False,
        description="loopback, link-local and private networks may be reached: only with a `url` here, "
        "or if you trust every payload",
    )
    max_redirects: int = Field(
        default=0, ge=0, le=10, description="how many a GET follows, without headers and signature; at most 10"
    )
    max_bytes: int = Field(default=64 << 10, ge=0, le=1 << 20, description="how much of the answer is read")
    timeout: float = Field(
        default=15.0, gt=0, le=600, description="seconds for the whole request; a payload may ask for less"
    )


class EmbedOptions(_Strict):
    """The form of the vectors, and limits."""

    encoding: Literal["list", "base64"] = Field(
        default="list", description='or `"base64"`: little-endian float32, about half the size'
    )
    max_texts: int = Field(default=64, ge=1, le=1000, description="of one payload")
    max_length: int = Field(default=20_000, ge=1, le=1_000_000, description="characters of each text")


class OcrOptions(PictureOptions):
    """Those of pictures, and how lines are found."""

    threshold: float = Field(default=0.5, ge=0, le=1, description="the lowest confidence of a line")
    longest_side: int = Field(
        default=1280,
        ge=64,
        le=4096,
        description="a picture is reduced to this many pixels to find its lines; raise it for small print",
    )
    upside_down: bool = Field(default=False, description="whether upside-down lines are read, too")


class SpeechOptions(_Strict):
    """The files that may be read, and how they are transcribed."""

    root: str | None = Field(default=None, min_length=1, description="the only folder whose files may be read")
    max_bytes: int = Field(default=64 << 20, ge=1, le=1 << 30, description="of the file")
    max_seconds: float = Field(default=600.0, gt=0, le=14_400, description="of the recording")
    beam_size: int = Field(default=1, ge=1, le=10, description="more is slower and a little more accurate")
    skip_silence: bool = Field(
        default=True, description="leaves out parts without speech, which may otherwise become words"
    )
    model: str | None = Field(
        default=None, min_length=1, description="a folder with another Whisper model (CTranslate2), for other languages"
    )
    language: str | None = Field(default=None, min_length=2, description='like `"de"`; recognised if not given')


class ThumbnailOptions(PictureOptions):
    """Those of pictures, and the form and place of the thumbnails."""

    folder: str = Field(default="", description="where thumbnails are written; required")
    sizes: list[Annotated[int, Field(ge=8, le=4096)]] = Field(
        default=[256], min_length=1, max_length=10, description="pixels of the longer side, each for one file"
    )
    format: Literal["webp", "jpeg", "png"] = Field(default="webp", description='or `"jpeg"`, `"png"`')
    quality: int = Field(default=80, ge=1, le=100, description="of WebP and JPEG")
    fit: Literal["contain", "cover"] = Field(
        default="contain", description='or `"cover"`: a square, cut from the middle'
    )


class ShellOptions(_Strict):
    """What payloads may start; without `allow`, nothing."""

    allow: list[str] | Literal["any"] = Field(
        default=[], validate_default=True, description='absolute paths of programs, or `"any"`; required'
    )
    shell: bool = Field(
        default=False, description='payloads may have a `command` for /bin/sh in place of `argv`; needs `"any"`'
    )
    folder: str | None = Field(default=None, min_length=1, description="the working directory; by default the worker's")
    environment: list[str] = Field(
        default=["PATH", "LANG", "HOME", "TZ"], description="the variables that the program inherits"
    )
    timeout: float = Field(
        default=60.0, gt=0, le=86_400, description="seconds; keep it below the `timeout` of the pool"
    )
    max_output: int = Field(
        default=64 << 10, ge=0, le=1 << 20, description="bytes that are kept of each of stdout and stderr"
    )
    final: list[int] = Field(default=[], description="exit codes that fail for good")

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
