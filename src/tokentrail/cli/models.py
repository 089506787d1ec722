"""Models of a deployment file that run on this machine: their flags are those of `tokentrail serve`, read by the same
code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tokentrail.cli.options import EngineOptions, takes_options
from tokentrail.cli.serve import TextOptions
from tokentrail.protocol import TokentrailError

if TYPE_CHECKING:
    from tokentrail.gateway.config import Deployment, LocalModel
    from tokentrail.server.config import ServedModel


def check_alone(
    deployment: Deployment,
    model: str | None,
    engine: EngineOptions,
    texts: TextOptions,
    names: Sequence[str],
) -> None:
    """Refuse what the command line says of a model beside a file that lists models: it would be of none of them."""
    listed = ", ".join(one.name for one in deployment.models)
    file = deployment.where("models")
    if model is not None:
        raise typer.BadParameter(
            f"the deployment file lists the models to serve ({file}: {listed}): leave {model!r} out, or write it there",
            param_hint="MODEL",
        )
    if names:
        raise typer.BadParameter(
            f"the models of the deployment file have their names there ({file}: {listed})",
            param_hint="--served-model-name",
        )
    for group in (engine, texts):
        for field in group.__dataclass_fields__:
            if getattr(group, field) != getattr(type(group)(), field):
                flag = field.replace("_", "-")
                raise typer.BadParameter(
                    f"the deployment file lists the models to serve ({file}: {listed}): write `flags: {{{flag}: …}}` "
                    "there, with the model it is for",
                    param_hint=f"--{flag}",
                )


def served_models(deployment: Deployment, folder: Path) -> tuple[ServedModel, ...]:
    """Those that run here, as the server starts them; models are looked for beside the file first, in `folder`.

    Raises `ConfigError` naming the lines of all mistakes.
    """
    from tokentrail.gateway.config import ConfigError, LocalModel

    found: list[ServedModel] = []
    problems: list[str] = []
    for at, model in enumerate(deployment.models):
        if not isinstance(model, LocalModel):
            continue
        try:
            found.append(_served(model, folder))
        except _FlagError as error:
            where = deployment.where("models", at, "flags", error.flag)
            problems.append(f"{where}: models[{at}].flags: {error}")
        except TokentrailError as error:
            problems.append(f"{deployment.where('models', at, 'model')}: models[{at}]: {error.message}")
    if problems:
        raise ConfigError("\n".join(problems))
    return tuple(found)


class _FlagError(Exception):
    def __init__(self, message: str, flag: str = "") -> None:
        super().__init__(message)
        self.flag = flag


def _served(model: LocalModel, folder: Path) -> ServedModel:
    from tokentrail.engine.cores import divide, own_cores
    from tokentrail.server.config import ServedModel

    engine, texts = _read_flags(model.flags)
    try:
        texts.check()
        config = engine.engine_config(_find(model.model, folder))
    except typer.BadParameter as error:
        hint = str(error.param_hint or "").lstrip("-")
        name = next((one for one in model.flags if one.replace("_", "-") == hint), "")
        raise _FlagError(f"{hint + ': ' if hint else ''}{error.message}.", name) from None
    cores = model.core_sets
    if cores is None and model.replicas > 1:
        cores = divide(own_cores(), model.replicas)
    return ServedModel(
        names=(model.name,),
        engine=config,
        cores=tuple(cores or ()),
        chat_template=engine.chat_template,
        generation_config=engine.generation_config,
        tool_call_parser=texts.tool_call_parser,
        reasoning_parser=texts.reasoning_parser,
        pooling=texts.pooling,
    )


def _find(model: str, folder: Path) -> str | None:
    if model == "demo":
        return None
    beside = folder / model
    if beside.exists():
        return str(beside)
    is_path = model.startswith((".", "/", "~")) or model.lower().endswith(".gguf")
    if is_path and not Path(model).expanduser().exists():
        raise TokentrailError(f"there is no file or folder {model}, neither here nor beside this file.")
    return model


def _read_flags(flags: Mapping[str, Any]) -> tuple[EngineOptions, TextOptions]:
    """As the command line reads them. Raises `_FlagError`."""
    read: list[tuple[EngineOptions, TextOptions]] = []

    @takes_options
    def take(engine: EngineOptions, texts: TextOptions) -> None:
        read.append((engine, texts))

    app = typer.Typer(add_completion=False)
    app.command(context_settings={"token_normalize_func": None})(take)
    command = typer.main.get_command(app)
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    arguments: list[str] = []
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-").lstrip("-")
        if flag == "--model" or flag not in known:
            what = "is the setting `model`" if flag == "--model" else "there is no such flag for a model"
            raise _FlagError(f"{name}: {what}.", name)
        if value is None:
            continue
        if isinstance(value, bool):
            off = f"--no-{flag[2:]}"
            if not value and off not in known:
                continue  # it is off
            arguments.append(flag if value else off)
        else:
            for one in value if isinstance(value, list) else [value]:
                arguments.append(f"{flag}={one}")
    try:
        command.main(args=arguments, prog_name="flags", standalone_mode=False)
    except Exception as error:
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        written = {"--" + name.replace("_", "-").lstrip("-"): name for name in flags}
        options = getattr(getattr(error, "param", None), "opts", ())
        name = next((written[one] for one in options if one in written), "")
        raise _FlagError(" ".join(message().split()).rstrip(".") + ".", name) from None
    return read[0]
