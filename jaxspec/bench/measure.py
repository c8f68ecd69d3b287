"""One interleaved run: every contender on every prompt in turn, so that a slow minute of the machine hits them all."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from jaxspec.bench.contenders import PEER, Contender, Run
from jaxspec.decode.prefill import plan
from jaxspec.telemetry import compilations

WARM_UP_TOKENS = 4

Told = Callable[[str, int, int], None]
"""Told (what, steps done, steps in all)."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """One contender's answer to one prompt."""

    contender: str
    prompt: int  # its place in the run's prompts
    repeat: int
    run: Run
    compilations: int = 0  # programs compiled meanwhile; after the warm-up there should be none


def schedule(contenders: int, prompts: int, repeats: int) -> Iterator[tuple[int, int, int]]:
    """(repeat, prompt, contender) of every run. The order turns by one from prompt to prompt and repeat to repeat.

    3 contenders, 2 prompts, 2 repeats:   012 120 | 120 201
    """
    for repeat in range(repeats):
        for prompt in range(prompts):
            for turn in range(contenders):
                yield repeat, prompt, (repeat + prompt + turn) % contenders


def measure(
    contenders: Sequence[Contender],
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    repeats: int = 1,
    told: Told | None = None,
) -> list[Timing]:
    """Warm every contender up, then time it on every prompt.

    Args:
        told: called after every answer.
    """
    warm_up(contenders, prompts, max_new_tokens=max_new_tokens, told=told)
    timings: list[Timing] = []
    total = len(contenders) * len(prompts) * repeats
    for repeat, prompt, index in schedule(len(contenders), len(prompts), repeats):
        contender, before = contenders[index], compilations()
        run = contender.run(prompts[prompt], max_new_tokens)
        timings.append(Timing(contender.name, prompt, repeat, run, compilations() - before))
        if told is not None:
            told("timing", len(timings), total)
    return timings


def warm_up(
    contenders: Sequence[Contender],
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    told: Told | None = None,
) -> None:
    """A few tokens of the prompts that between them need every program of the run; of one prompt for a peer."""
    some = covering([len(prompt) for prompt in prompts])
    for done, contender in enumerate(contenders):
        if told is not None:
            told(f"compiling {contender.name}", done, len(contenders))
        for index in some[:1] if contender.kind == PEER else some:
            contender.run(prompts[index], min(WARM_UP_TOKENS, max_new_tokens))


def covering(lengths: Sequence[int]) -> list[int]:
    """Places of a few prompts whose prefills use every chunk width that any of them uses.

    lengths 10 300 12:   widths {16} {256, 64} {16}   ->   0 1
    """
    seen: set[int] = set()
    chosen: list[int] = []
    for index, length in enumerate(lengths):
        widths = {width for _, width in plan(length - 1)}
        if index == 0 or not widths <= seen:
            chosen.append(index)
            seen |= widths
    return chosen
