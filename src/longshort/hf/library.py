"""transformers, for all that need it: told what to install where it is not there, and quiet where it is a part of the
work. Whoever can do without it imports this room late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

try:
    import transformers as hf
except ImportError as error:
    raise ImportError("pretrained encoders need transformers: pip install 'longshort[encoders]'") from error

__all__ = ["hf", "quiet"]


@contextmanager
def quiet() -> Iterator[None]:
    """Silences transformers' progress bars and "newly initialised" warnings. Errors still raise."""
    logging = hf.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
