"""Models that are saved to folders and to the Hugging Face hub, with configs in which dataclasses have their types."""

import json
from pathlib import Path
from typing import Any

from huggingface_hub import PyTorchModelHubMixin
from huggingface_hub.constants import CONFIG_NAME

from longshort.serial import fields_as_json


class OnHub(PyTorchModelHubMixin, library_name="longshort", paper_url="https://arxiv.org/abs/2107.02192"):
    """Writes a config in which each attention has its type. Only our own are made from it: a model with an attention of
    yours is read by from_pretrained(folder, config=...), the config it was made with."""

    config: Any

    def _save_pretrained(self, save_directory: Path) -> None:
        super()._save_pretrained(save_directory)
        (save_directory / CONFIG_NAME).write_text(json.dumps(fields_as_json(self.config), indent=2))
