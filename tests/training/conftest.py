"""Tests here compile quickly."""

from tests.decode.quick import compile_quickly  # noqa: F401
