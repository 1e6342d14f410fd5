"""handlers.caption with a model of transformers: a tiny BLIP with random weights, made here."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handlers.caption import Captioner

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the libraries are imported
torch = pytest.importorskip("torch", reason="torch comes with the extra caption")
transformers = pytest.importorskip("transformers", reason="transformers comes with the extra caption")
Image = pytest.importorskip("PIL.Image", reason="Pillow comes with the extra caption")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]", "[ENC]", "a", "cat", "dog", "picture", "of"]
LAYER = {"hidden_size": 16, "intermediate_size": 32, "projection_dim": 16, "num_hidden_layers": 1}


@pytest.fixture(scope="module")
def blip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blip")
    torch.manual_seed(0)
    config = transformers.BlipConfig(
        text_config={
            **LAYER,
            "num_attention_heads": 2,
            "encoder_hidden_size": 16,
            "max_position_embeddings": 32,
            "vocab_size": len(WORDS),
            "bos_token_id": WORDS.index("[DEC]"),
            "eos_token_id": WORDS.index("[SEP]"),
            "sep_token_id": WORDS.index("[SEP]"),
            "pad_token_id": WORDS.index("[PAD]"),
        },
        vision_config={**LAYER, "num_attention_heads": 2, "image_size": 32, "patch_size": 16},
        projection_dim=16,
    )
    transformers.BlipForConditionalGeneration(config).save_pretrained(folder)
    tokenizer = transformers.BertTokenizerFast(vocab={word: index for index, word in enumerate(WORDS)})
    images = transformers.BlipImageProcessor(size={"height": 32, "width": 32})
    transformers.BlipProcessor(images, tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture
def noise(tmp_path: Path) -> str:
    path = tmp_path / "noise.png"
    Image.frombytes("RGB", (48, 40), random.Random(3).randbytes(48 * 40 * 3)).save(path)
    return str(path)


def test_a_model_directory_captions_the_same_picture_alike(blip: Path, noise: str, context: Callable[..., Any]) -> None:
    handler = Captioner()
    handler.setup(context(model=str(blip), max_new_tokens=6))
    first = handler.handle({"path": noise}, context())
    assert first == handler.handle({"path": noise}, context())
    assert (first["method"], first["model"]) == ("model", str(blip))
    assert first["caption"]
    assert torch.get_num_threads() == 1
    handler.teardown(context())


def test_weights_that_are_a_pickle_are_refused(blip: Path, tmp_path: Path, context: Callable[..., Any]) -> None:
    for file in blip.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match=r"model\.safetensors"):
        Captioner().setup(context(model=str(tmp_path)))
