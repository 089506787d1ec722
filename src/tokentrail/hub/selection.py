"""Which files of a repository a model needs: decided from their names alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokentrail.checkpoints import gguf_part_names
from tokentrail.protocol import ModelFileError

FOLDER_FILES = (
    r"config\.json",
    r"generation_config\.json",
    r"quantize_config\.json",
    r"quant_config\.json",
    r"model\.safetensors\.index\.json",
    r"(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|tekken)\.json",
    r"(tokenizer|tiktoken)\.model",
    r"vocab\.txt|merges\.txt|spiece\.model|.+\.tiktoken",
    r"chat_template\.(json|jinja)",
    r"modules\.json|1_Pooling/config\.json",
    r"additional_chat_templates/.+\.jinja",
)
"""Files beside the weights that are read, by patterns of their names."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
INDEX = "model.safetensors.index.json"

_FOLDER_FILE = re.compile("|".join(FOLDER_FILES))
_NO_MODEL = re.compile(r"(^|[-_./])(mmproj|imatrix)", re.IGNORECASE)
"""GGUF files that belong to a model, but are none: projectors of images, importance matrices."""
_PART = re.compile(r"-\d{5}-of-\d{5}$")
_TAG = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_[0-9A-Z]+)*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32))(?=$|[-._/])",
    re.IGNORECASE,
)
"""The format that a GGUF file's name tells: Q4_K_M, IQ2_XXS, BF16 …"""
_SHOWN = 30


@dataclass(frozen=True)
class Selection:
    """What to download."""

    files: tuple[str, ...]
    main: str | None
    """The GGUF file to open; None: the folder as it is."""


@dataclass(frozen=True)
class _GGUF:
    """A model in one file or several parts."""

    stem: str
    """Path without `.gguf` and the part's number."""
    files: tuple[str, ...]

    @property
    def tag(self) -> str:
        found: list[str] = _TAG.findall(self.stem)
        return found[-1].upper() if found else ""

    @property
    def shown(self) -> str:
        """The shortest selector that people know it by."""
        return self.tag or self.files[0]

    def answers_to(self, selector: str) -> bool:
        wanted = selector.lower().removesuffix(".gguf")
        paths = [path.lower().removesuffix(".gguf") for path in (self.stem, *self.files)]
        names = {*paths, *(path.rpartition("/")[2] for path in paths)}
        return wanted in names or wanted in {self.tag.lower(), self.tag.lower().removeprefix("ud-")}


def select(repository: str, names: Iterable[str], selector: str | None) -> Selection:
    """The files of `repository`, which holds `names`, that the model needs.

    `selector`: format or name of a GGUF file; None: the model in safetensors, or the only GGUF file. Raises
    `ModelFileError` saying what there is where nothing fits, or several things do.
    """
    # A listing must not lead out of the folder that is downloaded into.
    names = sorted(name for name in names if not name.startswith("/") and ".." not in name.split("/"))
    models = _gguf_models(names)
    if selector is not None:
        return _gguf(repository, models, selector)
    weights = _safetensors(names)
    if weights and "config.json" in names:
        return Selection((*weights, *(name for name in names if _FOLDER_FILE.fullmatch(name))), None)
    if len(models) == 1:
        return _complete(repository, models[0])
    if models:
        raise ModelFileError(
            f"{repository}: holds {len(models)} GGUF files: {_list(models)}. "
            f"Name one, as {repository}:{_usual(models).shown}"
        )
    pickles = [name for name in names if name.endswith(PICKLES)]
    if pickles:
        raise ModelFileError(
            f"{repository}: holds its weights as pickle files ({pickles[0]}), which can run any program when they are "
            "loaded, and no .safetensors or GGUF files. Look for a converted revision (--revision refs/pr/1, say) or a "
            "GGUF repository of the model, or convert it where you trust it, with transformers' save_pretrained."
        )
    if "adapter_config.json" in names:
        raise ModelFileError(
            f"{repository}: holds an adapter, not a model. Give the model that it was made for."
        )
    raise ModelFileError(
        f"{repository}: holds no model: neither .safetensors with config.json, nor GGUF files."
    )


def _gguf(repository: str, models: Sequence[_GGUF], selector: str) -> Selection:
    if not models:
        raise ModelFileError(
            f"{repository}: holds no GGUF files, of which :{selector} would choose one. "
            f"Give {repository} alone, or a GGUF repository of the model."
        )
    # A whole name or tag goes before a tag that another maker's prefix is left out of.
    exact = [model for model in models if model.tag.lower() == selector.lower()]
    fitting = exact or [model for model in models if model.answers_to(selector)]
    if len(fitting) > 1:
        fitting_names = ", ".join(
            f"{repository}:{model.stem.rpartition('/')[2]}.gguf" for model in fitting[:_SHOWN]
        )
        raise ModelFileError(
            f"{repository}: {len(fitting)} GGUF files are {selector}. Name one: {fitting_names}"
        )
    if not fitting:
        raise ModelFileError(f"{repository}: no GGUF file is {selector}. There are: {_list(models)}")
    return _complete(repository, fitting[0])


def _gguf_models(names: Sequence[str]) -> list[_GGUF]:
    groups: dict[str, list[str]] = {}
    for name in names:
        if name.lower().endswith(".gguf") and not _NO_MODEL.search(name):
            groups.setdefault(_PART.sub("", name[:-5]), []).append(name)
    return [_GGUF(stem, tuple(files)) for stem, files in groups.items()]


def _complete(repository: str, model: _GGUF) -> Selection:
    first = model.files[0]
    folder, slash, name = first.rpartition("/")
    expected = [f"{folder}{slash}{part}" for part in gguf_part_names(name)]
    missing = [part for part in expected if part not in model.files]
    if missing:
        raise ModelFileError(
            f"{repository}: {len(missing)} of {len(expected)} parts of {model.shown} are missing: "
            f"{', '.join(missing[:5])}. Tell its makers, or choose another file."
        )
    return Selection(tuple(expected), expected[0])


def _safetensors(names: Sequence[str]) -> list[str]:
    """Of the folder itself: those of one model. (Other folders hold other programs' versions of it.)"""
    weights = [name for name in names if name.endswith(".safetensors") and "/" not in name]
    weights = [name for name in weights if not name.startswith(("consolidated", "adapter_model"))]
    if INDEX in names:  # parts; `checkpoints` sees whether they are those of the index
        parts = [name for name in weights if _PART.search(name.removesuffix(".safetensors"))]
        return parts or weights
    return ["model.safetensors"] if "model.safetensors" in weights else weights


def _list(models: Sequence[_GGUF]) -> str:
    shown = sorted({model.shown for model in models})
    return ", ".join(shown[:_SHOWN]) + (f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else "")


def _usual(models: Sequence[_GGUF]) -> _GGUF:
    """One to name as an example: what most people take."""
    for tag in ("Q4_K_M", "Q4_0", "Q8_0"):
        for model in models:
            if model.tag == tag:
                return model
    return models[0]
