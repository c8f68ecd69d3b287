"""A run that is killed, that diverges or that the disk stops can be gone on with, and reaches the same weights."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxspec.sharding import make_mesh
from jaxspec.training.fit import Recipe
from jaxspec.training.run import LOOK, METRICS, Schedule, TrainingError, train
from tests.training import toy

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run: its folder and weights."""
    folder = tmp_path_factory.mktemp("run") / "whole"
    return folder, toy.run(folder)


def same(mine, other) -> bool:
    return all(np.array_equal(mine[name], other[name]) for name in other)


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def saved(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.glob("checkpoints/*") if path.name.isdecimal())


def timeless(lines: list[dict]) -> list[dict]:
    return [{name: value for name, value in line.items() if name not in ("time", "seconds")} for line in lines]


class Stop(Exception):
    """Stands for a kill in this process."""


def child(folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.training.toy", str(folder)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)})


@pytest.mark.heavy
def test_killed_at_random_moments_it_reaches_the_same_weights(tmp_path):
    """kill -9 a random moment after a checkpoint has appeared, several times."""
    folder, rng, kills = tmp_path / "run", np.random.default_rng(int.from_bytes(os.urandom(4))), 0
    other = child(tmp_path / "whole")
    while True:
        before = max(saved(folder), default=0)
        run = child(folder)
        while kills < 4 and run.poll() is None:
            if max(saved(folder), default=0) > before:
                time.sleep(rng.uniform(0, 0.08))
                run.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        error = run.communicate(timeout=300)[1].decode()
        assert run.returncode in (0, -signal.SIGKILL), error
        if run.returncode == 0:
            break
        kills += 1
    assert kills >= 2
    assert other.communicate(timeout=300)[0] is None
    assert other.returncode == 0
    with np.load(folder / "trained.npz") as mine, np.load(tmp_path / "whole" / "trained.npz") as whole:
        assert same(mine, whole)
    assert timeless(metrics(folder)) == timeless(metrics(tmp_path / "whole"))
    assert [path.name for path in (folder / "checkpoints").iterdir() if not path.name.isdecimal()] == []


@pytest.mark.parametrize("at", [3, 5, 17, 38])
def test_stopped_anywhere_it_goes_on_from_the_last_checkpoint(at, tmp_path, whole):
    folder, asked = tmp_path / "run", []

    def stopping(step: int):
        if step == at:
            raise Stop
        return toy.batch_at(step)

    def noting(step: int):
        asked.append(step)
        return toy.batch_at(step)

    with pytest.raises(Stop):
        toy.run(folder, batches=stopping)
    assert same(toy.run(folder, batches=noting), whole[1])
    assert asked[0] == at - at % 5  # and no batch is seen again from before
    steps = [line["step"] for line in metrics(folder)]
    assert steps == sorted(set(steps))
    assert timeless(metrics(folder)) == timeless(metrics(whole[0]))


def test_another_start_reaches_other_weights(tmp_path, whole):
    """The control: the comparison tells runs apart."""
    assert not same(toy.run(tmp_path / "run", batches=lambda step: toy.batch_at(step + 1)), whole[1])


def test_a_finished_run_is_not_run_again(whole):
    def never(step: int):
        raise AssertionError

    assert same(toy.run(whole[0], batches=never), whole[1])


def test_half_a_line_of_metrics_is_dropped(tmp_path, whole):
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        toy.run(folder, batches=lambda step: toy.batch_at(step) if step < 22 else (_ for _ in ()).throw(Stop()))
    with (folder / METRICS).open("a") as stream:
        stream.write('{"step": 40, "loss": 1.0}\n{"step": 41, "lo')
    toy.run(folder)
    assert timeless(metrics(folder)) == timeless(metrics(whole[0]))


def test_a_loss_that_is_no_number_stops_it_and_names_the_last_good_checkpoint(tmp_path):
    folder = tmp_path / "run"

    def spoilt(step: int):
        x, y = toy.batch_at(step)
        return (x * np.nan if step == 17 else x), y

    with pytest.raises(TrainingError) as error:
        toy.run(folder, batches=spoilt)
    good = folder / "checkpoints" / "15"
    assert f"no number at step 18; the last good checkpoint is {good}; lower the rate, which is 0.05" in str(
        error.value
    )
    assert saved(folder) == [10, 15]
    assert all(np.isfinite(line["loss"]) for line in metrics(folder))
    slower = Schedule(Recipe(60, rate=0.01), save_every=5)  # as it was told: a lower rate, from there
    params = toy.run(folder, slower, settings=toy.SETTINGS | {"rate": 0.01}, free=("rate",))
    assert all(np.isfinite(leaf).all() for leaf in params.values())


def test_weights_that_are_no_numbers_are_not_saved(tmp_path):
    """A finite loss with a slope that is none."""

    def rooted(params, batch, context):
        value, seen = toy.loss(params, batch, context)
        return value + jnp.sqrt(0.0 * jnp.sum(params["b"])), seen

    with pytest.raises(TrainingError, match=r"weights are no numbers after step 1; no checkpoint had been saved"):
        toy.run(tmp_path / "run", toy.schedule(1), loss=rooted)
    assert saved(tmp_path / "run") == []


def wait_for(folder, step: int) -> None:
    """Until a checkpoint that is written beside the steps is whole."""
    for _ in range(600):
        if step in saved(folder):
            return
        time.sleep(0.1)
    pytest.fail(f"there is no checkpoint of step {step} after a minute")


@pytest.mark.parametrize("room", [0, 400], ids=["metrics", "checkpoint"])
def test_a_full_disk_is_one_sentence_and_leaves_the_last_good_checkpoint(room, tmp_path, whole):
    """A limit on file sizes stands for the full disk; with some room it is a checkpoint that cannot be written."""
    folder, before = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)

    def filling(step: int):
        if step == 33:
            wait_for(folder, 30)
            resource.setrlimit(resource.RLIMIT_FSIZE, ((folder / METRICS).stat().st_size + room, before[1]))
        return toy.batch_at(step)

    try:
        with pytest.raises(TrainingError) as error:
            toy.run(folder, batches=filling)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = str(error.value)
    assert said.startswith(f"{folder} cannot be written (File too large)")
    assert max(saved(folder)) == 30
    assert f"the last good checkpoint is {folder / 'checkpoints' / '30'}" in said
    assert said.endswith("free space and run it again")
    assert "\n" not in said
    assert same(toy.run(folder), whole[1])


def test_other_settings_are_refused(tmp_path):
    folder = tmp_path / "run"
    toy.run(folder, toy.schedule(2))
    with pytest.raises(
        TrainingError, match=r"holds a run with kind 'toy', asked for is 'other'; give the same settings"
    ):
        toy.run(folder, toy.schedule(2), settings=toy.SETTINGS | {"kind": "other"})
    with pytest.raises(TrainingError, match=r"with rate 0.05, asked for is 0.1"):
        toy.run(folder, toy.schedule(2), settings=toy.SETTINGS | {"rate": 0.1})
    with pytest.raises(TrainingError, match=r"with more None, asked for is 1"):
        toy.run(folder, toy.schedule(2), settings=toy.SETTINGS | {"more": 1})
    (folder / "run.json").write_text('{"kind"')
    with pytest.raises(TrainingError, match=r"run.json is broken .*; choose another folder"):
        toy.run(folder, toy.schedule(2))


def test_a_truncated_checkpoint_is_named(tmp_path):
    folder = tmp_path / "run"
    toy.run(folder, toy.schedule(10))
    for file in (folder / "checkpoints" / "10").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(
        TrainingError, match=r"checkpoints/10 cannot be read .*; delete it to go on from the one before"
    ):
        toy.run(folder, toy.schedule(10))


def test_eight_devices_train_what_one_does(tmp_path, whole):
    mesh = make_mesh("data=8")
    params = toy.run(tmp_path / "run", mesh=mesh)
    assert len(params["w"].sharding.device_set) == 8
    for name, leaf in whole[1].items():
        np.testing.assert_allclose(params[name], leaf, atol=1e-5)
    # and what they saved, one device goes on with
    assert same(toy.run(tmp_path / "run"), params)


def test_computing_in_bfloat16_leaves_float32_parameters(tmp_path, whole):
    seen = []

    def noting(params, batch, context):
        seen.append((params["w"].dtype, context["shift"].dtype))
        return toy.loss(params, tuple(each.astype(params["w"].dtype) for each in batch), context)

    params = toy.run(tmp_path / "run", loss=noting, dtype=jnp.bfloat16)
    assert seen[0] == (jnp.bfloat16, jnp.bfloat16)
    assert {leaf.dtype for leaf in params.values()} == {jnp.dtype(jnp.float32)}
    for name, leaf in whole[1].items():
        np.testing.assert_allclose(params[name], leaf, atol=0.1)
        assert np.any(np.asarray(params[name], jnp.bfloat16).astype(np.float32) != params[name])


def test_accumulated_batches_are_one_that_is_as_large(tmp_path):
    def large(step: int):
        parts = [toy.batch_at(4 * step + i) for i in range(4)]
        return tuple(np.concatenate(each) for each in zip(*parts, strict=True))

    one = toy.run(tmp_path / "large", toy.schedule(15), batches=large)
    many = toy.run(tmp_path / "many", toy.schedule(15, accumulate=4))
    plain = toy.run(tmp_path / "plain", toy.schedule(15))  # the control: the first of the batches alone
    for name, leaf in one.items():
        np.testing.assert_allclose(many[name], leaf, atol=1e-5)
    assert not np.allclose(plain["w"], one["w"], atol=1e-3)


def test_every_look_is_a_line_and_validation_is_told(tmp_path):
    told = []
    toy.run(
        tmp_path / "run",
        toy.schedule(50, save_every=100, validate_every=15),
        told=lambda done, steps, line: told.append((done, steps)),
        validate=lambda step, params: {"step": step, "w": float(params["w"][0, 0])},
    )
    lines = metrics(tmp_path / "run")
    looks = sorted({*range(LOOK, 51, LOOK), *range(15, 51, 15), 50})
    assert [line["step"] for line in lines] == looks
    assert told == [(step, 50) for step in looks]
    assert [line["validation"]["step"] for line in lines if "validation" in line] == [15, 30, 45, 50]
    assert all(line["seconds"] >= 0 and len(line["error"]) == 1 for line in lines)


def test_it_is_the_optimiser_of_the_recipe(tmp_path):
    recipe = Recipe(6, rate=0.05)
    got = train(toy.loss, toy.start(), toy.batch_at, Schedule(recipe), tmp_path / "run", context=toy.CONTEXT)
    params, optimizer = toy.start(), recipe.optimizer()
    memory = optimizer.init(params)
    for step in range(6):
        slope = jax.grad(lambda p, b: toy.loss(p, b, toy.CONTEXT)[0])(params, toy.batch_at(step))
        with jax.numpy_dtype_promotion("standard"):
            change, memory = optimizer.update(slope, memory, params)
        params = optax.apply_updates(params, change)
    for name, leaf in params.items():
        np.testing.assert_allclose(got[name], leaf, atol=1e-6)


@pytest.mark.parametrize("wrong", [{"accumulate": 0}, {"save_every": 0}, {"keep": 0}])
def test_a_schedule_out_of_range_is_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is 0; give 1 or more"):
        toy.schedule(**wrong)
