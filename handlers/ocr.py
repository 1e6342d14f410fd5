"""The text in a picture: PP-OCRv6 through RapidOCR, on one CPU thread.

    [pools.ocr]
    handler = "handlers.ocr:Reader"

Reads printed Latin and Chinese script; handwriting poorly. The weights come with the extra: nothing is downloaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from handlers import extras, inference, picture
from handlers.extras import bundled, require
from handlers.options import OcrOptions, checked_by, read

if TYPE_CHECKING:
    from supervisor import Context

MODEL = "pp-ocrv6-small"

# The files of rapidocr 3.10.0, with the checksums that its MODEL_LICENSES.md gives.
_MODELS = {
    "Det": ("PP-OCRv6_det_small.onnx", "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f"),
    "Rec": ("PP-OCRv6_rec_small.onnx", "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884"),
    "Cls": ("ch_ppocr_mobile_v2.0_cls_mobile.onnx", "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c"),
}


def _needs(options: OcrOptions) -> None:
    extras.check("PIL", "cv2", "numpy", "onnxruntime", "rapidocr", extra="ocr")


@checked_by(OcrOptions, _needs)
class Reader:
    """`{"path": "scan.png"}` → `{"text": "Invoice 4711", "lines": [{"text", "score", "box"}], "model": …}`.

    `box` is the smallest upright rectangle around a line, in pixels: left, top, right, bottom. A picture without text
    has an empty `text` and no `lines`.
    """

    def __init__(self) -> None:
        self._options = OcrOptions()
        self._engine: Any = None

    def setup(self, ctx: Context) -> None:
        self._options = read(OcrOptions, ctx.options)
        require("PIL.Image", extra="ocr")
        inference.runtime("ocr")
        require("cv2", extra="ocr").setNumThreads(1)
        models = {
            f"{part}.model_path": str(bundled("rapidocr", f"models/{name}", sha256=digest, extra="ocr"))
            for part, (name, digest) in _MODELS.items()
        }
        self._engine = require("rapidocr", extra="ocr").RapidOCR(params={**models, **_settings(self._options)})
        self._engine(_sample())  # it loads its models with the first text, which should not be a job's

    def after_interrupt(self, ctx: Context) -> None:
        """Nothing goes on: the model runs within the call that was interrupted."""

    def handle(self, payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        numpy = require("numpy", extra="ocr")
        image = picture.load(payload, self._options)
        pixels = numpy.ascontiguousarray(numpy.asarray(image)[:, :, ::-1])  # the library's order is blue, green, red
        found = self._engine(pixels)
        lines = [
            {"text": text, "score": round(float(score), 4), "box": _rectangle(corners)}
            for text, score, corners in zip(found.txts or (), found.scores or (), _boxes(found), strict=True)
        ]
        return {"text": "\n".join(line["text"] for line in lines), "lines": lines, "model": MODEL}

    def teardown(self, ctx: Context) -> None:
        self._engine = None


def _settings(options: OcrOptions) -> dict[str, Any]:
    return {
        "EngineConfig.onnxruntime.intra_op_num_threads": 1,
        "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        "Global.log_level": "critical",  # it logs a warning for each picture without text
        "Global.text_score": options.threshold,
        "Global.use_cls": options.upside_down,
        # The library would enlarge every small picture to 736 pixels, which takes thrice the memory and the time.
        "Det.limit_type": "max",
        "Det.limit_side_len": options.longest_side,
    }


def _sample() -> Any:
    """A picture with a word in it."""
    image = require("PIL.Image", extra="ocr").new("RGB", (160, 64), "white")
    require("PIL.ImageDraw", extra="ocr").Draw(image).text((20, 16), "Ready", fill="black", font_size=24)
    return require("numpy", extra="ocr").asarray(image)


def _boxes(found: Any) -> list[Any]:
    return [] if found.boxes is None or found.txts is None else found.boxes.tolist()


def _rectangle(corners: list[list[float]]) -> list[int]:
    across, down = zip(*corners, strict=True)
    return [round(min(across)), round(min(down)), round(max(across)), round(max(down))]
