"""Cost tables on the host: as JSON, stored by what they were measured for, refined while they are used."""

from jaxspec.costs.first import GUESS, Priced, Prices, check_given, command, given, guessed, key_for, say
from jaxspec.costs.refine import Refiner, refine
from jaxspec.costs.show import tables
from jaxspec.costs.spent import price_of, spent
from jaxspec.costs.store import Key, Stored, every, find, look_up, make_key, save
from jaxspec.costs.written import document, open_document, parse, read

__all__ = [
    "GUESS",
    "Key",
    "Priced",
    "Prices",
    "Refiner",
    "Stored",
    "check_given",
    "command",
    "document",
    "every",
    "find",
    "given",
    "guessed",
    "key_for",
    "look_up",
    "make_key",
    "open_document",
    "parse",
    "price_of",
    "read",
    "refine",
    "save",
    "say",
    "spent",
    "tables",
]
