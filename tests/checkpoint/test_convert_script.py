"""The script converts as its arguments say and tells bad input in one line."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import tests.checkpoint.tiny as tiny

SCRIPT = Path(__file__).parents[2] / "scripts" / "convert_checkpoint.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("convert_checkpoint", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_and_back(script, tmp_path, capsys):
    source = tiny.write_hf(tmp_path / "source", tiny.hf_config("phi3"), tiny.hf_tensors("phi3"))
    assert script.main([str(source), str(tmp_path / "ours")]) == 0
    assert script.main([str(tmp_path / "ours"), str(tmp_path / "back"), "--to", "hf", "--max-shard-size", "20KB"]) == 0
    back = tiny.read_hf(tmp_path / "back")
    assert all(np.array_equal(back[name], array) for name, array in tiny.hf_tensors("phi3").items())
    assert len(list((tmp_path / "back").glob("*.safetensors"))) > 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "100%" in output.err or "Converting" in output.err


def test_bad_input_is_one_line(script, tmp_path, capsys):
    source = tiny.write_hf(tmp_path / "source", tiny.hf_config("llama"), {"stray": np.zeros(3, np.float32)})
    assert script.main([str(tmp_path / "absent"), str(tmp_path / "out")]) == 2
    assert "error: " in capsys.readouterr().err
    assert script.main([str(source), str(tmp_path / "out")]) == 2
    assert "unexpected: stray [3]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("text", "expected"), [("5GB", 5 * 10**9), ("1.5 MB", 1_500_000), ("20k", 20_000), ("7", 7)])
def test_sizes(script, text, expected):
    assert script.size(text) == expected
    with pytest.raises(Exception, match="is not a size"):
        script.size(text + "x")
    with pytest.raises(Exception, match="beyond all disks"):
        script.size("9" * 400)
