"""Which table a call uses: the one that was given, the one that is stored, or one measured now and stored."""

import dataclasses
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from jax.typing import DTypeLike

from jaxspec.contracts import EngineParams, Setup
from jaxspec.costs.refine import Refiner
from jaxspec.costs.store import Key, look_up, make_key, save
from jaxspec.costs.written import open_document, read
from jaxspec.decode.calibrate import NoRoom, Told, calibrate
from jaxspec.select import kinds_of
from jaxspec.select.cost import CostTable, check_costs, guess

GUESS = "guess"
"""In place of a table: weigh rough costs, measure nothing."""

Note = Callable[[str], None]


def say(line: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"{line}\n")


def guessed(setup: Setup) -> CostTable:
    """Rough costs of a setup, a plain step being 1."""
    kinds = kinds_of(setup.sources, setup.windows)
    return guess(kinds.passes, kinds.nodes, kinds.windows)


def given(costs: str | CostTable | None, setup: Setup) -> CostTable | None:
    """The table that a caller gave, by itself, as "guess" or as a file; None for the one of this machine.

    Raises:
        ValueError: a table that the setup cannot use, in one sentence.
    """
    if costs is None:
        return None
    if isinstance(costs, CostTable):
        return check_costs(setup, costs)
    return guessed(setup) if costs == GUESS else read(costs, setup)


def check_given(costs: str | CostTable | None) -> None:
    """Refuse a file that cannot be read, before anything is loaded.

    Raises:
        ValueError: in one sentence.
    """
    if isinstance(costs, str) and costs != GUESS:
        open_document(costs)


def key_for(setup: Setup, *, rows: int, capacity: int, dtype: DTypeLike) -> Key:
    """Of an engine with so many rows of so many tokens."""
    return make_key(
        setup.target.config,
        dtype=dtype,
        rows=rows,
        sources=setup.names,
        windows=setup.windows,
        capacity=capacity,
        mesh=setup.mesh,
    )


def command(key: Key, target: str, drafts: Sequence[str]) -> str:
    """The command that measures a key's table anew."""
    parts = ["python", "scripts/calibrate.py", "--target", target]
    parts += [word for draft in drafts for word in ("--draft", draft)]
    parts += ["--lookahead", str(key.windows[-1] - 1), "--rows", str(key.rows), "--max-length", str(key.capacity)]
    parts += ["--dtype", key.dtype, *(["--mesh", key.mesh] if key.mesh else [])]
    return shlex.join(parts)


@dataclasses.dataclass
class Priced:
    """The table of one call. `refiner` is None where it stays as it is."""

    table: CostTable
    key: Key | None = None  # None: it was given or guessed
    taken: float = 0.0  # seconds that measuring it took, now or when it was stored
    refiner: Refiner | None = None
    deferred: bool = False  # nothing is known, and it is to be measured later


@dataclasses.dataclass
class Prices:
    """Tables of a pipeline, by the rows and the capacity of its calls. `known` are those of this process."""

    given: CostTable | None  # for all of them
    note: Note  # told a line that a user should know
    known: dict[Key, Priced] = dataclasses.field(default_factory=dict)

    def of(
        self,
        setup: Setup,
        params: EngineParams,
        *,
        rows: int,
        capacity: int,
        dtype: DTypeLike,
        prompt_ids: Sequence[int],
        begin: Callable[[], None] = lambda: None,
        told: Told | None = None,
        anew: bool = False,
        defer: bool = False,
    ) -> tuple[EngineParams, Priced]:
        """The parameters of a call with what its selector is given, and the table in them.

        Args:
            params: with `SelectorParams`, of which the costs are put in place.
            rows, capacity, dtype, prompt_ids, told: as in `jaxspec.decode.calibrate.calibrate`.
            begin: called before anything is measured.
            anew: measure, whatever is known.
            defer: where nothing is known, guess and measure nothing; `Priced.deferred` says so.
        """
        if (self.given is not None and not anew) or not setup.lookahead:
            found = Priced(guessed(setup) if self.given is None else self.given)
        else:
            key = key_for(setup, rows=rows, capacity=capacity, dtype=dtype)
            found = None if anew else self.known.get(key) or self._stored(key)
            if found is None and defer:
                found = Priced(guessed(setup), deferred=True)
            elif found is None:
                begin()
                options: dict[str, Any] = {"rows": rows, "capacity": capacity, "dtype": dtype, "told": told}
                found = self._measured(key, setup, params, prompt_ids=prompt_ids, **options)
        params = dataclasses.replace(params, selector=params.selector._replace(cost=found.table))
        return params, self._followed(found, setup)

    def _measured(self, key: Key, setup: Setup, params: EngineParams, **options: Any) -> Priced:
        """Measured now, and stored; guessed where rows are too short for it."""
        began = time.perf_counter()
        try:
            table = calibrate(setup, params, note=self.note, **options)
        except NoRoom as error:
            self.note(f"costs were guessed: {error}")
            return Priced(guessed(setup))
        found = Priced(table, key, time.perf_counter() - began)
        self._keep(found)
        return found

    def _followed(self, found: Priced, setup: Setup) -> Priced:
        """For one call, at the end of which `settle` looks how far the costs have moved."""
        if found.key is None:
            return found
        self.known[found.key] = found
        return dataclasses.replace(found, refiner=Refiner(found.table, kinds_of(setup.sources, setup.windows)))

    def settle(self, priced: Priced, target: str, drafts: Sequence[str]) -> None:
        """After a call: keep what was learnt of the costs, and say so where they were far off."""
        refiner, key = priced.refiner, priced.key
        if refiner is None or key is None:
            return
        ratio = refiner.off
        if ratio is not None:
            than = f"{ratio:.1f} times longer than" if ratio > 1 else f"{ratio:.2f} times what"
            self.note(
                f"the stored costs are stale: rounds took {than} they say; measure anew with "
                f"{command(key, target, drafts)}"
            )
        if refiner.changed:
            self.known[key] = Priced(refiner.table, key, priced.taken)
            self._keep(self.known[key])

    def _stored(self, key: Key) -> Priced | None:
        found = look_up(key, note=self.note)
        return None if found is None else Priced(found.table, key, found.seconds_taken)

    def _keep(self, priced: Priced) -> None:
        assert priced.key is not None
        try:
            save(priced.key, priced.table, priced.taken)
        except (OSError, ValueError) as error:
            self.note(f"costs cannot be stored, and will be measured again: {error}")


__all__ = ["GUESS", "Priced", "Prices", "check_given", "command", "given", "guessed", "key_for", "say"]
