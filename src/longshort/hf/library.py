"""transformers, imported in one place: an error that says what to install, quiet loading, errors of one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten

import torch

try:
    import transformers as hf
except ImportError as error:
    raise ImportError("pretrained encoders need transformers: pip install 'longshort[encoders]'") from error

__all__ = ["hf", "loading", "quiet"]


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


@contextmanager
def loading(checkpoint: str | Path) -> Iterator[None]:
    """Turns what is wrong with the content of a checkpoint's files into a ValueError of one sentence that names it."""
    try:
        yield
    except (ImportError, OSError, MemoryError, torch.OutOfMemoryError):  # not of the content
        raise
    except Exception as error:  # of safetensors, tokenizers, huggingface_hub and others: they share no type
        message = str(error).strip()
        if isinstance(error, ValueError) and str(checkpoint) in message and "\n" not in message:
            raise
        sentence = shorten(message, 200, placeholder=" ...") or type(error).__name__
        raise ValueError(f"{checkpoint} cannot be read: {sentence}") from error
