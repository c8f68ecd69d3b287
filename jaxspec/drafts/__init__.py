"""Draft sources, each behind the one `DraftSource` interface."""

from jaxspec.drafts.exit import early_exit
from jaxspec.drafts.lm import lm
from jaxspec.drafts.lookup import lookup
from jaxspec.drafts.none import none

__all__ = ["early_exit", "lm", "lookup", "none"]
