"""Checkpoint files of the real framework: what it saves is read here without it, and what is written here it loads."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from twinscope.errors import WeightError
from twinscope.weights.convert import convert_checkpoint
from twinscope.weights.files import read_checkpoint, read_file

pytestmark = pytest.mark.filterwarnings("ignore")

EXTENSION = {"torch": ".pth", "paddle": ".pdparams", "mindspore": ".ckpt"}
DTYPES = ["float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8", "bool"]


def arrays(framework: str) -> dict[str, Any]:
    """What every framework can hold. Mindspore itself leaves empty tensors out of what it saves."""
    numbers = np.arange(6).reshape(2, 3) - 2
    found: dict[str, Any] = {name: numbers.astype(getattr(ml_dtypes, name, name)) for name in DTYPES}
    found["scalar"] = np.array(3.5, np.float32)
    found["one"] = np.array([3.5], np.float32)
    found["a.long.name"] = np.arange(70_000, dtype=np.float32).reshape(7, 10_000)
    if framework != "mindspore":
        found["empty"] = np.zeros((0, 3), np.float32)
    return found


def equal(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def tensor(framework: str, array: Any) -> Any:
    module = sys.modules[framework]
    if array.dtype == ml_dtypes.bfloat16:
        if framework == "mindspore":
            return module.Tensor(array.astype(np.float32), module.bfloat16)
        wide = (module.from_numpy if framework == "torch" else module.to_tensor)(array.astype(np.float32))
        return wide.to(module.bfloat16) if framework == "torch" else wide.astype("bfloat16")
    if framework == "torch":
        return module.from_numpy(array.copy())
    if framework == "paddle":
        return module.to_tensor(array)
    return module.Tensor(array)


def save(framework: str, path: Path, tensors: dict[str, Any], **options: Any) -> None:
    module = sys.modules[framework]
    if framework == "mindspore":
        module.save_checkpoint([{"name": n, "data": t} for n, t in tensors.items()], str(path), **options)
    else:
        module.save(tensors, str(path), **options)


def loaded(framework: str, path: Path) -> dict[str, Any]:
    """What the framework makes of a file, as arrays."""
    module = sys.modules[framework]
    if framework == "torch":
        found = module.load(path, weights_only=True)
        return {
            n: (t.view(module.int16).numpy().view(ml_dtypes.bfloat16) if t.dtype == module.bfloat16 else t.numpy())
            for n, t in found.items()
        }
    if framework == "paddle":
        found = module.load(str(path))
        return {
            n: (t.numpy().view(ml_dtypes.bfloat16) if t.dtype == module.bfloat16 else t.numpy())
            for n, t in found.items()
        }
    found = module.load_checkpoint(str(path))
    return {
        n: (
            t.astype(module.float32).asnumpy().astype(ml_dtypes.bfloat16) if t.dtype == module.bfloat16 else t.asnumpy()
        )
        for n, t in found.items()
    }


class Dense:
    """Pickled as paddle pickles its DenseTensor."""

    def __reduce__(self) -> Any:
        return eval, ("data", {"data": np.ones(2, np.float32)})


def test_what_the_framework_saved_is_read(framework: str, tmp_path: Path) -> None:
    wanted = arrays(framework)
    path = tmp_path / f"a{EXTENSION[framework]}"
    save(framework, path, {n: tensor(framework, a) for n, a in wanted.items()})
    found = read_checkpoint(path)
    assert list(found) == list(wanted)
    assert [n for n, a in wanted.items() if not equal(found[n], a)] == []
    assert found.contents.framework == framework
    assert all(found[n].base is not None for n in found if found[n].size)  # views of the file


def test_what_is_written_here_the_framework_loads(framework: str, tmp_path: Path) -> None:
    wanted = arrays(framework)
    first = tmp_path / f"a{EXTENSION[framework]}"
    save(framework, first, {n: tensor(framework, a) for n, a in wanted.items()})
    convert_checkpoint(first, tmp_path / "b.safetensors", None)
    last = tmp_path / f"c{EXTENSION[framework]}"
    convert_checkpoint(tmp_path / "b.safetensors", last, None)
    found = loaded(framework, last)
    assert [n for n, a in wanted.items() if n not in found or not equal(found[n], a)] == []


def test_other_values_are_told_apart(framework: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{EXTENSION[framework]}"
    save(framework, path, {"w": tensor(framework, np.ones(3, np.float32))})
    assert not equal(read_checkpoint(path)["w"], np.array([1, 1, 1.5], np.float32))
    path.chmod(0o600)  # mindspore's are read-only
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(WeightError):
        read_checkpoint(path)


def test_tensors_that_are_not_contiguous_and_tied(framework: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{EXTENSION[framework]}"
    whole = tensor(framework, np.arange(24, dtype=np.float32).reshape(4, 6))
    turned = whole.T if framework != "paddle" else whole.t()
    tensors = {"whole": whole, "same": whole, "turned": turned, "part": whole[1:3, 2:5]}
    save(framework, path, tensors)
    found = read_checkpoint(path)
    grid = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert np.array_equal(found["whole"], grid) and np.array_equal(found["same"], grid)
    assert np.array_equal(found["turned"], grid.T) and np.array_equal(found["part"], grid[1:3, 2:5])
    convert_checkpoint(path, tmp_path / f"b{EXTENSION[framework]}", None)
    again = loaded(framework, tmp_path / f"b{EXTENSION[framework]}")
    assert all(np.array_equal(again[name], found[name]) for name in tensors)


def test_a_training_checkpoint(framework: str, tmp_path: Path) -> None:
    module = sys.modules[framework]
    path = tmp_path / f"a{EXTENSION[framework]}"
    if framework == "mindspore":
        net = module.nn.Dense(3, 2)
        optimizer = module.nn.Momentum(net.trainable_params(), 0.1, 0.9)
        module.save_checkpoint(optimizer, str(path), append_dict={"epoch": 3, "txt": "hello"}, crc_check=True)
        assert "txt (str)" in read_file(path).states[0].left_out
        assert {"weight", "moments.weight"} <= set(read_checkpoint(path))
        return
    net = module.nn.Linear(3, 2)
    if framework == "torch":
        optimizer = module.optim.Adam(net.parameters())
        net(module.ones(1, 3)).sum().backward()
        extra = {"args": __import__("argparse").Namespace(lr=0.1), "size": module.Size([1]), "dtype": module.float16}
    else:
        optimizer = module.optimizer.Adam(parameters=net.parameters())
        net(module.ones([1, 3])).sum().backward()
        extra = {"lr": np.float32(0.1)}
    optimizer.step()
    module.save({"state_dict": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, **extra}, str(path))
    found = read_checkpoint(path)
    assert sorted(found) == ["bias", "weight"] and found.state.where == "state_dict"
    assert np.array_equal(found["weight"], net.weight.detach().numpy())
    report = str(convert_checkpoint(path, tmp_path / "b.safetensors", None))
    assert "optimizer" in report and "epoch (3)" in report


def test_a_whole_model_is_refused_by_name(framework: str, tmp_path: Path) -> None:
    module = sys.modules[framework]
    path = tmp_path / f"a{EXTENSION[framework]}"
    if framework == "torch":
        module.save(module.nn.Linear(2, 2), path)
        with pytest.raises(WeightError, match=r"torch\.nn\.modules\.linear\.Linear"):
            read_checkpoint(path)
        module.jit.trace(module.nn.Linear(2, 2), module.ones(1, 2)).save(str(path))
        with pytest.raises(WeightError, match="TorchScript"):
            read_checkpoint(path)
        module.save({"w": module.ones(2)}, path, _use_new_zipfile_serialization=False)
        with pytest.raises(WeightError, match="old format"):
            read_checkpoint(path)
        module.save({"w": module.quantize_per_tensor(module.ones(2), 0.1, 0, module.qint8)}, path)
        with pytest.raises(WeightError, match="_rebuild_qtensor"):
            read_checkpoint(path)
    elif framework == "paddle":
        path.write_bytes(pickle.dumps({"w": Dense()}, 4))
        with pytest.raises(WeightError, match=r"builtins\.eval"):
            read_checkpoint(path)
        module.save(module.ones([2]), str(path))
        with pytest.raises(WeightError, match="not a dict"):
            read_checkpoint(path)
    else:
        one = [{"name": "w", "data": module.Tensor(np.ones(2, np.float32))}]
        for mode in ("AES-GCM", "AES-CBC", "SM4-CBC"):
            path.unlink(missing_ok=True)
            module.save_checkpoint(one, str(path), enc_key=b"0123456789abcdef", enc_mode=mode)
            with pytest.raises(WeightError, match="is encrypted"):
                read_checkpoint(path)


def test_the_frameworks_own_options(framework: str, tmp_path: Path) -> None:
    module = sys.modules[framework]
    path = tmp_path / f"a{EXTENSION[framework]}"
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    if framework == "paddle":
        net = module.nn.Linear(2, 3)
        for protocol in (2, 3, 4):
            module.save(net.state_dict(), str(path), protocol=protocol)
            found = read_checkpoint(path)
            assert sorted(found) == ["bias", "weight"] and equal(found["weight"], net.weight.numpy())
    elif framework == "mindspore":
        for check in (False, True):
            save(framework, path, {"w": module.Tensor(array)}, crc_check=check)
            assert equal(read_checkpoint(path)["w"], array)
        save(framework, tmp_path / "a.safetensors", {"w": module.Tensor(array)}, format="safetensors")
        assert read_file(tmp_path / "a.safetensors").framework == "mindspore"
    else:
        given = {
            "parameter": module.nn.Parameter(module.from_numpy(array)),
            "conjugate": module.tensor([1 + 2j]).conj(),
            "negative": module.tensor([1 + 2j]).conj().imag,
            "float8": module.ones(2).to(module.float8_e4m3fn),
            "wide": module.ones(2).expand(3, 2),
        }
        module.save(given, path, pickle_protocol=4)
        found = read_checkpoint(path)
        assert equal(found["parameter"], array) and found["conjugate"].tolist() == [1 - 2j]
        assert found["negative"].tolist() == [-2] and found["float8"].astype(float).tolist() == [1, 1]
        assert found["wide"].shape == (3, 2)
        convert_checkpoint(path, tmp_path / "b.pth", None)
        for mapped in (False, True):
            again = module.load(tmp_path / "b.pth", weights_only=True, mmap=mapped)
            assert all(
                module.equal(again[name].to(module.complex64), t.to(module.complex64)) for name, t in given.items()
            )
