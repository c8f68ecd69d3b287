"""Draft sources, each behind the one `DraftSource` interface."""

from jaxspec.drafts.exit import early_exit
from jaxspec.drafts.feature import feature
from jaxspec.drafts.jacobi import jacobi
from jaxspec.drafts.lm import lm
from jaxspec.drafts.lookup import lookup
from jaxspec.drafts.medusa import medusa
from jaxspec.drafts.none import none

__all__ = ["early_exit", "feature", "jacobi", "lm", "lookup", "medusa", "none"]
