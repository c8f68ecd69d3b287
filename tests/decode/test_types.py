"""Values of a wrong type are refused as a user meets them: without the checks of types that these tests run under."""

import json
import subprocess
import sys
import textwrap

import pytest

SCRIPT = textwrap.dedent("""
    import json, sys
    import jax.numpy as jnp
    from flax import nnx
    from jaxspec import decode
    from jaxspec.sampling import warpers
    from jaxspec.models import Decoder, ModelConfig, bind

    sizes = dict(vocab_size=8, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=1, num_kv_heads=1)
    model, weights = bind(Decoder(ModelConfig("llama", head_dim=8, max_positions=64, **sizes), rngs=nnx.Rngs(0)))
    setup = decode.make_setup(model, drafts=())
    params = decode.EngineParams(weights, {}, ())

    def generate(prompts=[[1, 2]], params=params, **options):
        return decode.generate(setup, params, prompts, max_new_tokens=1, **options)

    said = {}
    for name, (what, options) in json.load(sys.stdin).items():
        if what == "empty":
            options = {"params": decode.EngineParams({}, {}, ())}
        if what == "jax":
            options = {"prompts": [jnp.asarray([1, 2])], "seed": jnp.asarray([3])}
        try:
            if what == "bias":
                options = {"warp": warpers(1, bias={1.5: 1.0})}
            decode.make_setup(model, **options) if what == "setup" else generate(**options)
            said[name] = "nothing"
        except ValueError as error:
            said[name] = str(error)
        except Exception as error:
            said[name] = repr(error)
    print(json.dumps(said))
""")

CASES = {
    "a control": (("request", {"seed": 1}), "nothing"),
    "arrays of jax": (("jax", {}), "nothing"),
    "a vocabulary that is no whole number": (("setup", {"vocab_size": 7.5}), "vocab_size is 7.5; the target's output"),
    "a mesh by its text": (("setup", {"mesh": "data=1"}), "mesh is 'data=1'; make one with jaxspec.sharding.make_mesh"),
    "ids that are no whole numbers": (
        ("request", {"prompts": [[1.7, 2.2]]}),
        "prompt 0 begins with 1.7 and is not all",
    ),
    "a seed that is no whole number": (("request", {"seed": 1.5}), "seed is 1.5 for 1 rows; give one whole number"),
    "a seed that is a text": (("request", {"seed": "7"}), "seed is '7' for 1 rows; give one whole number"),
    "seeds that are no whole numbers": (("request", {"seed": [1.5]}), "seed is [1.5] for 1 rows; give one whole"),
    "stop ids that are one number": (("request", {"stop_ids": 2}), "stop_ids is 2; give a sequence of ids"),
    "a bias of half a token": (("bias", {}), "bias of row 0 names token 1.5; token ids go from 0 to"),
    "no parameters": (("empty", {}), "the target has no parameters; pass them as EngineParams"),
}


@pytest.fixture(scope="module")
def said():
    given = json.dumps({name: case for name, (case, _) in CASES.items()})
    done = subprocess.run([sys.executable, "-c", SCRIPT], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_type_is_one_sentence(name, said):
    assert said[name].startswith(CASES[name][1])
