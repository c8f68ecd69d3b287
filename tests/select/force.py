"""What a step may do, row by row and entry by entry, without an array operation: the reference for plans."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.select.cost import widths_of
from jaxspec.select.plan import pick, table_of
from tests.select.made import KINDS, costs_of, signals_of

TAILS = (np.asarray([0, 0, 0, 0.4, 0.2]), np.asarray([0, 0, 0, 1.5, 0.7]))
"""Of each source: tokens that its tails have brought where they counted, and drafts in them."""

TABLE = jax.jit(table_of, static_argnums=5)
PICK = jax.jit(pick, static_argnums=2)


def expected(chance, drafts, weight=1.0):
    """1 + w sum of the chances that the first j drafts are all taken."""
    return 1 + weight * sum(np.prod(chance[: j + 1]) for j in range(drafts))


def at(table, place):
    return float(np.interp(place, np.arange(len(table)), table))


class Case:
    """Chances, signals and costs of some rows; every field may be given."""

    def __init__(self, seed, rows=3, kinds=KINDS, *, costs=None, scale=1.0, **more):
        rng = np.random.default_rng(seed)
        shape = (rows, len(kinds.names), kinds.lookahead)
        self.kinds, self.rows = kinds, rows
        self.chance = (rng.random(shape) ** 0.4 * scale).astype(np.float32)
        self.goes = rng.random(shape).astype(np.float32)
        self.costs = costs_of(kinds=kinds, lag=0.02, seed=seed) if costs is None else costs
        self.offered = more.pop("offered", rng.integers(0, kinds.lookahead + 1, shape[:2]) * (np.arange(shape[1]) > 0))
        self.lag = rng.integers(0, 4, shape[:2]) * np.asarray(kinds.passes)
        self.steering = more.pop("steering", {})
        self.active = np.asarray(more.pop("active", [True] * rows))
        assert not more

    @property
    def signals(self):
        return signals_of(self.offered, lag=self.lag, active=self.active, steering=self.steering)

    @property
    def weights(self):
        return np.broadcast_to(self.steering.get("weights", 1.0), self.offered.shape)

    def window(self):
        """Cost by drafts, at the load."""
        verify, widths = np.asarray(self.costs.verify, np.float64), np.asarray(self.kinds.windows)
        load = max(np.broadcast_to(self.steering.get("load", 0.0), (self.rows,))[self.active], default=0.0)
        verify = (1 - load) * verify + load * np.maximum(verify, verify[0] * widths)
        return verify[widths_of(self.kinds.windows, self.kinds.lookahead)]

    def best_free(self, row, longest):
        """(tokens, source) of the free sources that are there without asking; ties go to the first."""
        gains = [
            expected(self.chance[row, s], min(longest, self.offered[row, s]), self.weights[row, s])
            for s in range(len(self.kinds.names))
            if self.kinds.free[s] and (s != self.kinds.carrier or s == 0)
        ]
        sources = [
            s for s in range(len(self.kinds.names)) if self.kinds.free[s] and (s != self.kinds.carrier or s == 0)
        ]
        return max(gains), sources[int(np.argmax(gains))]

    def entries(self):
        """Every (paid source, longest, cost, tokens of the paid source in each row) there is."""
        window, most, n = self.window(), self.kinds.lookahead, range(self.rows)
        for drafts in range(most + 1):
            yield 0, drafts, window[drafts], [1.0 for _ in n]
        if c := self.kinds.carrier:
            for drafts in range(1, most + 1):
                own = [
                    max(
                        expected(self.chance[r, c], min(drafts, self.offered[r, c]), self.weights[r, c]),
                        1 + self.weights[r, c] * self.chance[r, c, 0] * (self.offered[r].max() > 0),
                    )
                    for r in n
                ]
                yield c, drafts, window[drafts] + float(self.costs.ride), own
        for m in self.kinds.models:
            drawn = [
                sum(np.prod(np.r_[1.0, self.goes[r, m, 1:j]]) for j in range(1, self.offered[r, m] + 1)) for r in n
            ]
            going = max(np.asarray(drawn)[self.active], default=0.0)
            wide = min(going + TAILS[1][m], most)
            lag = max(self.lag[self.active, m], default=0)
            cost = at(window, wide) + at(np.asarray(self.costs.draft[m]), going) + float(self.costs.lag[m]) * lag
            own = [1 + self.weights[r, m] * self.won(r, m) for r in n]
            yield m, int(wide), cost, own

    def won(self, row, model):
        """Tokens of a source's drafts and of the tail that follows where the last of them was taken."""
        goes = [*self.goes[row, model, 1 : self.offered[row, model]], 0.0]
        whole = [np.prod(self.chance[row, model, : j + 1]) for j in range(self.offered[row, model])]
        return sum(taken * (1 + (1 - on) * TAILS[0][model]) for taken, on in zip(whole, goes, strict=False))

    def best(self):
        """(rate, .., paid, longest, its tokens in each row) of the best entry, by force; the first of equals."""
        budget = min(
            np.broadcast_to(self.steering.get("latency_budget", np.inf), (self.rows,))[self.active], default=np.inf
        )
        found = []
        for paid, longest, cost, own in self.entries():
            if cost > budget and (paid, longest) != (0, 0):
                continue
            tokens = [max(own[r], self.best_free(r, longest)[0]) for r in range(self.rows) if self.active[r]]
            found.append((sum(tokens) / cost, -len(found), paid, longest, own))
        return max(found)

    def table(self):
        tails = tuple(jnp.asarray(each[: len(self.kinds.names)], jnp.float32) for each in TAILS)
        return TABLE(self.costs, self.signals, jnp.asarray(self.chance), jnp.asarray(self.goes), tails, self.kinds)

    def plan(self):
        return PICK(self.table(), self.signals, self.kinds)
