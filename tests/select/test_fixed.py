import jax.numpy as jnp
import numpy as np

from jaxspec import decode
from jaxspec.contracts import Signals
from jaxspec.select import fixed
from tests.decode.automata import automaton

MODEL = automaton(8)


def signals(rows):
    zeros = jnp.zeros((rows, 3), jnp.int32)
    return Signals(zeros, zeros, zeros, jnp.ones(rows, bool))


def test_every_row_and_round_gets_the_one_source_and_lookahead():
    selector = fixed(2, 5)
    choice = selector.choose((), selector.init(3, 3), signals(3))
    assert choice.source.tolist() == [2, 2, 2]
    assert choice.lookahead.tolist() == [5, 5, 5]
    assert selector.update((), (), signals(3), choice, None, None) == ()


def test_a_name_says_source_and_lookahead():
    def chosen(select):
        setup = decode.make_setup(MODEL, drafts=("lookup", ("lm:a:7", MODEL)), select=select, lookahead=6)
        choice = setup.selector.choose((), (), signals(1))
        return setup.names[int(choice.source[0])], int(choice.lookahead[0])

    assert chosen("fixed:lookup:3") == ("lookup", 3)
    assert chosen("fixed:lookup") == ("lookup", 6), "as many as there may be"
    assert chosen("fixed:none") == ("none", 0)
    assert chosen("fixed:lm:a:7:2") == ("lm:a:7", 2), "a source's name may hold colons and numbers"
    assert chosen("fixed:lm:a:7") == ("lm:a:7", 6)


def test_the_same_choice_is_the_same_selector_so_nothing_compiles_twice():
    assert fixed(1, 2) is fixed(1, 2)
    assert fixed(1, 2) is not fixed(1, 3)
    assert np.unique([s.name for s in (fixed(1, 2), fixed(2, 2))]).tolist() == ["fixed"]
