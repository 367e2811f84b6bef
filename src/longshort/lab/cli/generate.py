"""What `longshort generate` does: a language model goes on with a text."""

from __future__ import annotations

import codecs
import sys
import time
from typing import Any

import torch

from longshort.generate import Sampling, generate
from longshort.lab.runs.checkpoints import Which
from longshort.lab.trained import Trained


def write(
    name: str, prompt: bytes, count: int, sampling: Sampling, *, seed: int | None, which: Which, cpu: bool
) -> None:
    """Print the prompt and what follows it, as it comes; then, on stderr, the speed.

    Bytes that make no UTF-8, and characters that the terminal does not have, come out as signs for that.
    """
    device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
    half = device.type == "cuda" and torch.cuda.is_bf16_supported()
    model: Any = (
        Trained.open(name, which).expect("language").model(device).to(torch.bfloat16 if half else torch.float32)
    )
    characters = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def tell(content: bytes, final: bool = False) -> None:
        encoding = sys.stdout.encoding or "utf-8"
        text = characters.decode(content, final)
        sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
        sys.stdout.flush()

    writing = generate(model, prompt or b"\n", count, sampling, seed=seed)
    tell(prompt)
    done, began = 0, time.monotonic()
    try:
        for byte in writing:
            if done == 0:
                began = time.monotonic()  # reading the prompt is not writing
            tell(bytes([byte]))
            done += 1
    except KeyboardInterrupt:
        pass
    seconds = time.monotonic() - began
    tell(b"\n", final=True)
    print(f"{done} characters, {max(done - 1, 0) / max(seconds, 1e-9):.1f} a second", file=sys.stderr)
