"""Every block of the README runs as it stands."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def namespace() -> dict:
    """What the README's python blocks define, run in order in one namespace, as a reader would, with JAX's defaults."""
    names: dict = {}
    with (
        pytest.MonkeyPatch.context() as patch,
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
    ):
        patch.chdir(ROOT)
        for block in blocks("python"):
            exec(compile(block, "README.md", "exec"), names)
    return names


def test_python_blocks_run(namespace):
    assert len(blocks("python")) == 3
    assert len(namespace["answer"].results) == 2
    assert all(r.finish_reason in ("stop", "length") for r in namespace["answer"].results)


def test_model_of_your_own_decodes_as_plain_decoding_does(namespace):
    """The README's foreign model under a draft equals a loop that recomputes everything for each token."""
    weights, params, size = namespace["own_weights"], namespace["own_params"], namespace["own"].config
    prompt, total = [1, 2, 3], 27
    positions, mask = np.arange(total)[None], np.tril(np.ones((1, total, total), bool))
    text = np.zeros((1, total), np.int32)  # of one shape for one program; what is not known yet lies behind the mask
    text[0, : len(prompt)] = prompt
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        got = namespace["decode"].generate(namespace["own_setup"], params, [prompt], max_new_tokens=24)
        cache = namespace["init_cache"](1, 0, headroom=0)
        own = jax.jit(lambda tokens: namespace["forward"](weights, tokens, positions, mask, cache).logits)
        for at in range(len(prompt), total):
            text[0, at] = np.argmax(own(text)[0, at - 1])
    assert got.tokens[0] == text[0, len(prompt) :].tolist()
    assert text.max() < size.vocab_size
    assert got.counters.proposed.sum() > 0


def test_first_screen_holds_the_two_commands():
    first, second = blocks("bash")[:2]
    assert first == 'pip install -e . && python scripts/generate.py --chat --prompt "..."\n'
    assert second == "pip install -e '.[test]' && python -m pytest\n"


def test_paths_that_the_readme_names_exist():
    named = set(re.findall(r"`((?:scripts|jaxspec|checkpoints|tests|\.ci)/[\w./-]+)`", README))
    missing = [path for path in named if not (ROOT / path).exists()]
    assert not missing
    assert named
