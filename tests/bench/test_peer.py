"""The race is on one model: transformers decodes our parameters, and gets our tokens."""

import numpy as np
import pytest

import jaxspec
from jaxspec.bench.contenders import Ask
from jaxspec.models import unfuse
from tests.bench.tiny import checkpoint

pytestmark = pytest.mark.parity

ASK = Ask(stop_ids=(257,))


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peer")
    draft = checkpoint(folder / "draft", layers=1, seed=1)
    return jaxspec.load(str(checkpoint(folder / "target", layers=2, seed=0)), drafts=(f"lm:{draft}",))


def test_every_way_of_the_peer_gives_our_tokens(pipeline):
    from jaxspec.bench.peer import contenders

    ids = pipeline.encode("A plain sentence, a plain sentence.", chat=False)
    wanted = pipeline.generate("A plain sentence, a plain sentence.", max_new_tokens=24).results[0].tokens
    found = contenders(pipeline, ASK, threads=1)
    assert [each.name.rpartition(":lm:")[0] or each.name for each in found] == [
        "transformers:greedy",
        "transformers:lookup",
        "transformers:assisted",
    ]
    for each in found:
        run = each.run(ids, 24)
        assert run.tokens == wanted, each.name
        assert 0 < run.decode_tokens < 24 + 1
        assert run.rounds >= 1


def test_it_shares_our_parameters_memory(pipeline):
    from jaxspec.bench.peer import build

    model = build(pipeline.target, ASK)
    _, ours = unfuse(pipeline.target.model.config, {n: np.asarray(a) for n, a in pipeline.target.params.items()})
    state = model.state_dict()
    for name, array in ours.items():
        theirs = state[name if name.startswith("lm_head") else f"model.{name}"]
        assert theirs.data_ptr() == array.ctypes.data, name
