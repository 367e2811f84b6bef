"""Models that are saved to folders and to the Hugging Face hub, with configs that name their types."""

import inspect
import json
from pathlib import Path
from typing import Any, Self

from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.constants import CONFIG_NAME, SAFETENSORS_SINGLE_FILE

from longshort.checksums import CHECKPOINTS, META, run_folder, verify
from longshort.serial import as_json, read

MOST_LAYERS = 10_000  # a config that asks for more is damaged: to build it would take hours


class OnHub(PyTorchModelHubMixin, library_name="longshort", paper_url="https://arxiv.org/abs/2107.02192"):
    """Writes a config in which each type has its registered name. A model with an attention of your own is read once
    that is registered (longshort.serial.registered), or with from_pretrained(folder, config=...)."""

    config: Any

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> str | None:
        if run_folder(Path(save_directory)) is not None:
            raise ValueError(f"{save_directory} is a checkpoint of a run: give another folder")
        url: str | None = super().save_pretrained(save_directory, **options)
        return url

    def _save_pretrained(self, save_directory: Path) -> None:
        super()._save_pretrained(save_directory)
        (save_directory / META).unlink(missing_ok=True)  # in a copy of a checkpoint, the checksums of other weights
        (save_directory / CONFIG_NAME).write_text(json.dumps(as_json(self.config), indent=2))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, *, config: Any = None, **options: Any) -> Self:
        """A saved model, from a folder or from the hub, or a checkpoint, which is compared with its checksums.
        config: that it is built from, instead of its own."""
        if Path(pretrained_model_name_or_path).is_dir():
            verify(Path(pretrained_model_name_or_path), (CONFIG_NAME, SAFETENSORS_SINGLE_FILE))
        if config is None:
            config = read_config(_config_file(pretrained_model_name_or_path, options), cls.config_type())
        return super().from_pretrained(pretrained_model_name_or_path, config=config, **options)

    @classmethod
    def config_type(cls) -> type:
        expected: type = inspect.get_annotations(cls.__init__, eval_str=True)["config"]
        return expected


def _config_file(name: str | Path, options: dict[str, Any]) -> Path:
    if Path(name).is_dir():
        if not (Path(name) / CONFIG_NAME).exists():
            checkpoints = sorted((Path(name) / CHECKPOINTS).glob("step_*"))
            advice = f"; give a checkpoint, such as {checkpoints[-1]}" if checkpoints else ""
            raise FileNotFoundError(f"{name} holds no model: {CONFIG_NAME} is not there{advice}")
        return Path(name) / CONFIG_NAME
    download_options = ("revision", "cache_dir", "force_download", "token", "local_files_only")
    return Path(hf_hub_download(str(name), CONFIG_NAME, **{k: v for k, v in options.items() if k in download_options}))


def check_layers(count: int, name: str = "layers") -> None:
    if count > MOST_LAYERS:
        raise ValueError(f"{name} must be at most {MOST_LAYERS:,}, got {count}")


def read_config(path: Path, expected: type | None = None) -> Any:
    """expected: the config's type, which files of earlier versions do not name."""
    return read(path, expected or object, "config of a model")


def check_there(checkpoint: str | Path) -> None:
    """What cannot be a name on the hub has to be a folder with a model."""
    name, path = str(checkpoint), Path(checkpoint)
    if path.is_dir():
        if not (path / CONFIG_NAME).exists():
            raise FileNotFoundError(f"{checkpoint} holds no model: {CONFIG_NAME} is not there")
    elif path.exists():
        raise ValueError(f"{checkpoint} is a file: give the folder it is in")
    elif path.is_absolute() or name.count("/") > 1 or name.startswith(".") or ("/" in name and path.parent.is_dir()):
        raise FileNotFoundError(f"{checkpoint} is not there: give the folder of a model, or a name on the hub")
