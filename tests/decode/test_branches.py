"""What nobody asked for does not run: every product of a round lies in a branch.

XLA moves what a loop's body computes from nothing that the loop changes before the loop, where it runs even if the loop
does not. So a source that is in no branch costs a pass in every round, whoever was chosen.
"""

import functools

import jax
import jax.numpy as jnp
import pytest

from jaxspec import decode
from jaxspec.decode.state import init_state
from jaxspec.decode.step import step
from jaxspec.drafts import bank
from tests.decode import tiny
from tests.decode.trained import LOOKAHEAD, NAMES, trained

SOURCES = (*NAMES, "exit:1", "jacobi:3:3:4")
SETS = [(), *((name,) for name in SOURCES), ("feature", "lm"), SOURCES]


def traced(names, verify="coupled"):
    """A round with these sources, as it is traced."""
    model, params = tiny.model_of(tiny.TARGET, 0, 1.6)
    drafts = [(name, trained(name).config) if name in NAMES else name for name in names]
    options = {"select": "rule", "verify": verify, "lookahead": LOOKAHEAD, "vocab_size": tiny.VOCAB}
    setup = decode.make_setup(model, drafts=("lookup", "suffix", *drafts), **options)
    drafted = {name: trained(name).params for name in names if name in NAMES}
    request = decode.make_request(setup, [[1, 2, 3, 1, 2]], max_new_tokens=8)
    state = jax.eval_shape(lambda: init_state(setup, jnp.zeros((1, 64), jnp.int32), request, headroom=64))
    return jax.make_jaxpr(functools.partial(step, setup))(decode.EngineParams(params, drafted, ()), state).jaxpr


def products(jaxpr, inside=False):
    """Of every product, whether it lies in a branch; a switch of one branch is none."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield inside
        within = inside or equation.primitive.name == "cond"
        for leaf in jax.tree.leaves(equation.params, is_leaf=lambda each: hasattr(each, "eqns")):
            inner = getattr(leaf, "jaxpr", leaf)
            if hasattr(inner, "eqns"):
                yield from products(inner, within)


@pytest.mark.parametrize("names", SETS, ids=",".join)
def test_every_product_of_a_round_lies_in_a_branch(names):
    found = list(products(traced(names)))
    assert len(found) > 10, "the target's"
    assert all(found)


def test_a_source_in_a_loop_that_is_in_no_branch_is_found(monkeypatch):
    """As a switch of one branch is."""
    cond = jax.lax.cond

    def without(wanted, run, other, *operands):
        return cond(wanted, run, other, *operands) if operands == () else run(*operands)

    monkeypatch.setattr(bank.jax.lax, "cond", without)
    assert not all(products(traced(("feature",), verify="greedy")))
