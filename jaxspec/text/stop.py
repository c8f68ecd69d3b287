"""Stop strings in text that arrives in pieces: nothing of a match, and nothing after it, is ever shown."""

from collections.abc import Iterable, Sequence

from jaxspec.text.stream import Stream
from jaxspec.text.tokenizer import Tokenizer


class StopMatcher:
    """Lets text through until a stop string is complete.

    The stop string that ends first wins, of two that end together the longer: so the cut does not depend on how the
    text was split. `matched` is the string found, `pieces` how many pushed pieces it took, both None before.
    """

    def __init__(self, stops: Sequence[str]):
        if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in stops):
            raise ValueError(f"stop strings must be a list of strings that are not empty, got {stops!r:.80}")
        self._stops = tuple(stops)
        self._held = ""
        self._pushed = 0
        self.matched: str | None = None
        self.pieces: int | None = None

    def push(self, text: str) -> str:
        """The text that is safe to show now: all but a tail that may still become a stop string."""
        if self.matched is not None:
            return ""
        self._pushed += 1
        text = self._held + text
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            _, start, self.matched = min(found)
            self.pieces, self._held = self._pushed, ""
            return text[:start]
        safe = len(text) - self._possible(text)
        self._held = text[safe:]
        return text[:safe]

    def finish(self) -> str:
        """The tail that was held back: no stop string can come of it any more."""
        rest, self._held = self._held, ""
        return rest

    def _possible(self, text: str) -> int:
        """The length of the longest tail of `text` that begins a stop string."""
        longest = min(max(map(len, self._stops), default=1) - 1, len(text))
        tails = (n for n in range(longest, 0, -1) if any(stop.startswith(text[-n:]) for stop in self._stops))
        return next(tails, 0)


class StopStream:
    """A `Stream` that ends at a stop string: ids in, safe text out.

    `matched` is the stop string found; `tokens` how many pushed ids it took, the one that completed it included, which
    is where the output ends. Both are None while nothing matched. A character that a later id completes counts with
    that id. Special tokens are not in the text, so no stop string matches them: stop at their ids instead.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], *, skip_special: bool = True):
        self._stream = Stream(tokenizer, skip_special=skip_special)
        self._matcher = StopMatcher(stops)
        self._count = 0

    @property
    def matched(self) -> str | None:
        """The stop string that was found."""
        return self._matcher.matched

    @property
    def tokens(self) -> int | None:
        """The number of ids up to and including the one that completed the stop string."""
        pieces = self._matcher.pieces
        return None if pieces is None else min(pieces, self._count)  # the rest shown by finish belongs to the last id

    def push(self, ids: Iterable[int]) -> str:
        """The text that is safe to show now; ids after a match add nothing."""
        shown = []
        for i in ids:
            self._count += 1
            shown.append(self._matcher.push(self._stream.push([i])))
        return "".join(shown)

    def finish(self) -> str:
        """The rest of the text, cut at a stop string that the last held characters complete."""
        return self._matcher.push(self._stream.finish()) + self._matcher.finish()
