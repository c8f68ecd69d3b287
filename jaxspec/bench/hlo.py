"""Read what XLA compiled: instructions of an optimised program, and the buffers that they were given.

Works on the text of `Compiled.as_text()` and of a `*-buffer-assignment.txt` that XLA dumps, of every backend.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

BYTES = {
    "pred": 1,
    "s4": 0.5,
    "u4": 0.5,
    "s16": 2,
    "u16": 2,
    "bf16": 2,
    "s64": 8,
    "u64": 8,
    "f64": 8,
    "c64": 8,
    "c128": 16,
}
_SHAPE = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\](\{[^}]*\})?")
_CALLED = re.compile(
    r"\b(?:calls|body|condition|to_apply|\w+_computation|(?:branch|called)_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+)(?: \(.*)? \{$")
_ALLOCATION = re.compile(r"^allocation (\d+): size (\d+), (.*):$")
_VALUE = re.compile(r"^ value: <\d+ ([\w.\-]+)(\{[\d,]*\})?[^>]*> \(size=(\d+),offset=(\d+)\): (.*)$")


@dataclasses.dataclass(frozen=True)
class Shape:
    """One array: element type and local dimensions."""

    dtype: str
    dims: tuple[int, ...]
    on_chip: bool = False  # in a memory space other than the device's main memory

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes without padding."""
        return math.ceil(self.elements * BYTES.get(self.dtype, 1 if "8" in self.dtype else 4))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One operation of a compiled program."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]  # several for a tuple
    operands: tuple[str, ...]
    called: tuple[str, ...]  # computations it runs
    op_name: str  # where it comes from in the traced program; "" where XLA does not say
    trips: int | None  # of a loop, where XLA knows


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program: its computations by name."""

    computations: Mapping[str, tuple[Instruction, ...]]
    entry: str

    def inner(self) -> frozenset[str]:
        """Computations that run inside one operation, whose values have no buffers: fused ones and reducers."""
        bodies = {"while", "conditional", "call", "async-start"}
        return frozenset(
            name for body in self.computations.values() for i in body if i.opcode not in bodies for name in i.called
        )

    def instructions(self) -> Iterator[Instruction]:
        """Every operation that is run on its own."""
        inner = self.inner()
        for name, body in self.computations.items():
            if name not in inner:
                yield from body

    def opcodes(self, instruction: Instruction) -> frozenset[str]:
        """Opcodes of an operation and of what is fused into it."""
        found = {instruction.opcode}
        for name in instruction.called:
            for each in self.computations.get(name, ()):
                found |= self.opcodes(each)
        return frozenset(found)


@dataclasses.dataclass(frozen=True)
class Value:
    """One buffer's contents over a part of the program."""

    name: str  # the operation that makes it
    nbytes: int  # with padding
    offset: int  # in its allocation
    shape: Shape


@dataclasses.dataclass(frozen=True)
class Allocation:
    """A piece of memory, and all that lies in it at one time or another."""

    nbytes: int
    parameter: bool  # holds an argument, and results written over it
    temporary: bool
    on_chip: bool
    values: tuple[Value, ...]


def shapes(text: str) -> tuple[Shape, ...]:
    """Arrays of a type's text.

    bf16[8,4096]{1,0:T(8,128)(2,1)S(1)}  ->  Shape("bf16", (8, 4096), on_chip=True)
    """
    found = _SHAPE.findall(text)
    return tuple(
        Shape(kind, tuple(int(d) for d in dims.split(",") if d), "S(" in layout) for kind, dims, layout in found
    )


def parse(text: str) -> Program:
    """The program of `Compiled.as_text()`."""
    computations: dict[str, list[Instruction]] = {}
    entry, body = "", None
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header is not None:
            body = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif line == "}":
            body = None
        elif body is not None and " = " in line:
            body.append(_instruction(line))
    return Program({name: tuple(each) for name, each in computations.items()}, entry)


def _instruction(line: str) -> Instruction:
    left, _, right = line.partition(" = ")
    kind, rest = _balanced(right) if right.startswith("(") else right.split(" ", 1)
    opcode, _, tail = rest.strip().partition("(")
    operands, attributes = _balanced("(" + tail)
    called = [name for group in _CALLED.findall(attributes) for name in re.findall(r"[\w.\-]+", group)]
    op_name = re.search(r'op_name="([^"]*)"', attributes)
    trips = re.search(r'known_trip_count"?:\{"n":"(\d+)"', attributes)
    return Instruction(
        name=left.strip().removeprefix("ROOT ").removeprefix("%"),
        opcode=opcode,
        shapes=shapes(kind),
        operands=tuple(re.findall(r"%([\w.\-]+)", operands)),
        called=tuple(called),
        op_name="" if op_name is None else op_name[1],
        trips=None if trips is None else int(trips[1]),
    )


def _balanced(text: str) -> tuple[str, str]:
    """The parenthesised beginning of `text`, and what follows it."""
    depth = 0
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[: index + 1], text[index + 1 :]
    return text, ""


def parse_buffers(text: str) -> list[Allocation]:
    """Allocations of a `*-buffer-assignment.txt`."""
    found: list[tuple[int, str, list[Value]]] = []
    for line in text.splitlines():
        header = _ALLOCATION.match(line)
        if header is not None:
            found.append((int(header[2]), header[3], []))
            continue
        value = _VALUE.match(line)
        if value is not None and found:
            each = shapes(value[5]) or (Shape("token", ()),)
            found[-1][2].append(Value(value[1], int(value[3]), int(value[4]), each[0]))
        elif line.startswith("Total bytes"):
            break
    return [
        Allocation(
            nbytes=size,
            parameter=kind.startswith("parameter"),
            temporary="preallocated-temp" in kind,
            on_chip=re.search(r"\bcolor [1-9]", kind) is not None,
            values=tuple(values),
        )
        for size, kind, values in found
    ]
