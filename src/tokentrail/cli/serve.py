"""`tokentrail serve`: the OpenAI-compatible server."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokentrail.cli.help import Command
from tokentrail.cli.options import KEY_VARIABLE, EngineOptions, note, takes_options
from tokentrail.cli.terminal import loading

if TYPE_CHECKING:
    from tokentrail.gateway.config import Deployment
    from tokentrail.server.config import ServedModel

API = "API"
SERVER = "Server"
BROWSERS = "Browsers (CORS)"
TLS = "TLS"


@dataclass(frozen=True)
class TextOptions:
    """How one model's answers are read; beside the engine's, the flags that each model of a server has its own of."""

    tool_call_parser: Annotated[
        str | None,
        typer.Option(
            "--tool-call-parser",
            metavar="NAME",
            help="How the model writes tool calls (hermes, llama3_json and so on). Default: as its chat template says.",
            rich_help_panel=API,
        ),
    ] = None
    reasoning_parser: Annotated[
        str | None,
        typer.Option(
            "--reasoning-parser",
            metavar="NAME",
            help="How the model marks its thoughts (think, mistral and so on). Default: as in its chat template.",
            rich_help_panel=API,
        ),
    ] = None
    pooling: Annotated[
        str | None,
        typer.Option(
            "--pooling",
            metavar="KIND",
            help="How embeddings are made of hidden states: last, mean or cls (token). Default: as the model says, "
            "otherwise last.",
            rich_help_panel=API,
        ),
    ] = None

    def check(self) -> None:
        if self.pooling not in (None, "last", "mean", "cls"):
            raise typer.BadParameter(
                f"{self.pooling!r} is not one of last, mean or cls", param_hint="--pooling"
            )


@dataclass(frozen=True)
class ServerOptions:
    """The flags behind `ServerConfig`, the engine's apart."""

    host: Annotated[str, typer.Option("--host", help="Address to listen at.", rich_help_panel=SERVER)] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0: a free one.", rich_help_panel=SERVER)
    ] = 8000
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            "--served-model-name",
            metavar="NAME...",
            help="Names the model answers to, the first being its main one.",
            rich_help_panel=API,
        ),
    ] = None
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            metavar="KEY...",
            envvar=KEY_VARIABLE,
            show_envvar=True,
            help="Keys that clients must send one of. A key given here is seen in process listings while the "
            "program starts: prefer the environment variable or a file.",
            rich_help_panel=API,
        ),
    ] = None
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file",
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="File with one key a line; empty lines and # comments are skipped.",
            rich_help_panel=API,
        ),
    ] = None
    trust_request_chat_template: Annotated[
        bool,
        typer.Option(
            "--trust-request-chat-template",
            help="Let requests bring chat templates of their own.",
            rich_help_panel=API,
        ),
    ] = False
    files_dir: Annotated[
        Path | None,
        typer.Option(
            "--files-dir",
            file_okay=False,
            metavar="DIR",
            help="Folder for /v1/files and /v1/batches, made if it is not there. Without it there are none.",
            rich_help_panel=API,
        ),
    ] = None
    max_file_size: Annotated[
        int,
        typer.Option(
            "--max-file-size", min=1, metavar="MIB", help="Of an uploaded file.", rich_help_panel=API
        ),
    ] = 200
    files_quota: Annotated[
        int,
        typer.Option(
            "--files-quota",
            min=1,
            metavar="MIB",
            help="Of all files of a key, what batches write included.",
            rich_help_panel=API,
        ),
    ] = 10240
    batch_concurrency: Annotated[
        int,
        typer.Option(
            "--batch-concurrency",
            min=1,
            metavar="N",
            help="Requests of batches that run at a time; others go before them.",
            rich_help_panel=API,
        ),
    ] = 8
    trail_text: Annotated[
        bool,
        typer.Option(
            "--trail-text/--no-trail-text",
            help="Keep texts, token ids and alternatives in journeys.",
            rich_help_panel=API,
        ),
    ] = False
    trail_size: Annotated[
        int,
        typer.Option("--trail-size", min=0, metavar="N", help="Finished journeys kept.", rich_help_panel=API),
    ] = 1000
    responses_store: Annotated[
        int,
        typer.Option(
            "--responses-store",
            min=0,
            metavar="N",
            help="Responses kept for each key, with prompts and answers, for previous_response_id; 0: none.",
            rich_help_panel=API,
        ),
    ] = 0
    ui: Annotated[
        bool,
        typer.Option(
            "--ui/--no-ui",
            help="Serve a page at / to chat, watch and walk journeys in a browser.",
            rich_help_panel=API,
        ),
    ] = True
    ollama_api: Annotated[
        bool,
        typer.Option("--ollama-api/--no-ollama-api", help="Speak Ollama's API too.", rich_help_panel=API),
    ] = True
    llama_cpp_api: Annotated[
        bool,
        typer.Option(
            "--llama-cpp-api/--no-llama-cpp-api",
            help="Speak the API of llama.cpp's server too.",
            rich_help_panel=API,
        ),
    ] = True
    tgi_api: Annotated[
        bool,
        typer.Option(
            "--tgi-api/--no-tgi-api",
            help="Speak the API of Hugging Face's Text Generation Inference too.",
            rich_help_panel=API,
        ),
    ] = True
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-origins",
            metavar="ORIGIN...",
            help="Origins whose pages may call the API; * for any.",
            rich_help_panel=BROWSERS,
        ),
    ] = None
    allowed_methods: Annotated[
        list[str] | None,
        typer.Option("--allowed-methods", metavar="METHOD...", help="Default: *", rich_help_panel=BROWSERS),
    ] = None
    allowed_headers: Annotated[
        list[str] | None,
        typer.Option("--allowed-headers", metavar="HEADER...", help="Default: *", rich_help_panel=BROWSERS),
    ] = None
    allow_credentials: Annotated[
        bool, typer.Option("--allow-credentials", help="Let pages send cookies.", rich_help_panel=BROWSERS)
    ] = False
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-hosts",
            metavar="HOST...",
            help="Host names that requests may be sent to; * for any. Default: any, but at a loopback address without "
            "keys only those that web pages cannot take for their own.",
            rich_help_panel=BROWSERS,
        ),
    ] = None
    max_connections: Annotated[
        int | None,
        typer.Option(
            "--max-connections",
            min=1,
            metavar="N",
            help="Open connections at most; idle ones make room. Default: as many as the limit on open files allows.",
            rich_help_panel=SERVER,
        ),
    ] = None
    request_timeout: Annotated[
        float | None,
        typer.Option(
            "--request-timeout",
            min=0.001,
            metavar="SECONDS",
            help="Time a request may take, waiting included, before it ends with an error. Default: any.",
            rich_help_panel=SERVER,
        ),
    ] = None
    ssl_keyfile: Annotated[
        str | None,
        typer.Option(
            "--ssl-keyfile", metavar="FILE", help="Key of the certificate, in PEM.", rich_help_panel=TLS
        ),
    ] = None
    ssl_certfile: Annotated[
        str | None,
        typer.Option(
            "--ssl-certfile", metavar="FILE", help="Certificate and its chain, in PEM.", rich_help_panel=TLS
        ),
    ] = None
    ssl_ca_certs: Annotated[
        str | None,
        typer.Option(
            "--ssl-ca-certs",
            metavar="FILE",
            help="Certificates that those of clients must be signed with.",
            rich_help_panel=TLS,
        ),
    ] = None
    ssl_cert_reqs: Annotated[
        int,
        typer.Option(
            "--ssl-cert-reqs",
            min=0,
            max=2,
            metavar="N",
            help="Clients need a certificate: 0 no, 1 checked if there is one, 2 yes.",
            rich_help_panel=TLS,
        ),
    ] = 0
    shutdown_timeout: Annotated[
        float,
        typer.Option(
            "--shutdown-timeout",
            min=0.0,
            metavar="SECONDS",
            help="Time that running answers get to finish after SIGTERM.",
            rich_help_panel=SERVER,
        ),
    ] = 30.0
    log_level: Annotated[
        str,
        typer.Option(
            "--log-level", metavar="LEVEL", help="debug, info, warning or error.", rich_help_panel=SERVER
        ),
    ] = "info"
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="A deployment file: models, routes, keys, filters and so on. See tokentrail config --help.",
            rich_help_panel=SERVER,
        ),
    ] = None
    log_requests: Annotated[
        bool,
        typer.Option(
            "--log-requests/--no-log-requests",
            help="One line per answered request, never with its text.",
            rich_help_panel=SERVER,
        ),
    ] = True

    def keys(self) -> tuple[str, ...]:
        """All API keys, from flags, environment and file. One that is empty (an unset variable in a script) is
        refused: it would leave the server open to everyone.
        """
        keys = _words(self.api_key)
        if any(not _words([value]) for value in self.api_key or ()):
            raise typer.BadParameter("a key is empty", param_hint="--api-key")
        if not keys and not os.environ.get(KEY_VARIABLE, "a key").replace(",", "").strip():
            raise typer.BadParameter(
                "it is set, but holds no key; set one, or unset it", param_hint=KEY_VARIABLE
            )
        if self.api_key_file is not None:
            try:
                lines = self.api_key_file.read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise typer.BadParameter(
                    f"{self.api_key_file}: {error}", param_hint="--api-key-file"
                ) from None
            found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
            if not found:
                # An empty list would open the server to everyone, which nobody who names a key file wants.
                raise typer.BadParameter(f"{self.api_key_file} holds no key", param_hint="--api-key-file")
            keys += tuple(found)
        return tuple(dict.fromkeys(keys))


def _words(values: list[str] | None) -> tuple[str, ...]:
    """`["a,b", "c"]` → `("a", "b", "c")`."""
    return tuple(word.strip() for value in values or () for word in value.split(",") if word.strip())


class ServeCommand(Command):
    """Accepts lists as vLLM's users write them: `--served-model-name a b` besides repeating the flag."""

    LISTS = frozenset(
        {
            "--served-model-name",
            "--api-key",
            "--allowed-origins",
            "--allowed-methods",
            "--allowed-headers",
            "--allowed-hosts",
        }
    )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread_lists(args, self.LISTS))


def _check_lists(server: ServerOptions) -> None:
    """Without a model, refuse a list that has taken in a model's file: `--served-model-name a model.gguf`."""
    for flag, values in (
        ("--served-model-name", server.served_model_name),
        ("--api-key", server.api_key),
        ("--allowed-origins", server.allowed_origins),
        ("--allowed-methods", server.allowed_methods),
        ("--allowed-headers", server.allowed_headers),
        ("--allowed-hosts", server.allowed_hosts),
    ):
        for value in _words(values):
            if value.lower().endswith(".gguf") or (flag == "--served-model-name" and Path(value).is_file()):
                raise typer.BadParameter(
                    f"{value!r} is a file, but stands among the values of this flag. Write the model first: "
                    f"tokentrail serve {value} {flag} …, or behind --model",
                    param_hint=flag,
                )


def spread_lists(arguments: list[str], flags: frozenset[str]) -> list[str]:
    """Repeat a list's flag before each of its values: `--key a b --x` → `--key a --key b --x`."""
    spread: list[str] = []
    flag = ""
    values = 0
    for argument in arguments:
        if argument.startswith("-") and argument != "-":
            flag = argument if argument in flags else ""
            values = 0
        elif flag:
            if values:
                spread.append(flag)
            values += 1
        spread.append(argument)
    return spread


@takes_options
def serve(
    engine: EngineOptions,
    texts: TextOptions,
    server: ServerOptions,
    model_file: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="The same as --model.", show_default=False),
    ] = None,
) -> None:
    """Serve a model over HTTP, with OpenAI's API. Without a model: those of the deployment file (--config), or the demo
    model.
    """
    from tokentrail.engine.config import EngineConfig
    from tokentrail.server.config import ServerConfig, is_loopback

    if server.log_level not in ("debug", "info", "warning", "error"):
        raise typer.BadParameter(
            f"{server.log_level!r} is not one of debug, info, warning or error", param_hint="--log-level"
        )
    texts.check()
    if engine.model is None and model_file is None:
        _check_lists(server)
    keys = server.keys()
    models, in_file = None, False
    served: Callable[[Deployment], tuple[ServedModel, ...]] | None = None
    if server.config is not None:
        from tokentrail.cli.models import check_alone, served_models
        from tokentrail.gateway.config import load

        deployment = load(server.config)
        in_file = deployment.keys is not None
        if deployment.models:
            given = model_file or engine.model
            check_alone(deployment, given, engine, texts, _words(server.served_model_name))
            models = served_models(deployment, Path(server.config).parent)
            served = partial(served_models, folder=Path(server.config).parent)
    config = ServerConfig(
        engine=EngineConfig() if models is not None else engine.engine_config(model_file),
        models=models,
        host=server.host,
        port=server.port,
        served_model_names=_words(server.served_model_name),
        api_keys=keys,
        # The variable can be used as it is, if it holds one key that is let in.
        key_hint=f"${KEY_VARIABLE}" if os.environ.get(KEY_VARIABLE) in keys else "YOUR_KEY",
        chat_template=engine.chat_template,
        generation_config=engine.generation_config,
        trust_request_chat_template=server.trust_request_chat_template,
        tool_call_parser=texts.tool_call_parser,
        reasoning_parser=texts.reasoning_parser,
        pooling=texts.pooling,
        trail_text=server.trail_text,
        trail_size=server.trail_size,
        responses_store=server.responses_store,
        ui=server.ui,
        ollama_api=server.ollama_api,
        llama_cpp_api=server.llama_cpp_api,
        tgi_api=server.tgi_api,
        allowed_origins=_words(server.allowed_origins),
        allowed_methods=_words(server.allowed_methods) or ("*",),
        allowed_headers=_words(server.allowed_headers) or ("*",),
        allow_credentials=server.allow_credentials,
        allowed_hosts=_words(server.allowed_hosts),
        max_connections=server.max_connections,
        request_timeout=server.request_timeout,
        ssl_keyfile=server.ssl_keyfile,
        ssl_certfile=server.ssl_certfile,
        ssl_ca_certs=server.ssl_ca_certs,
        ssl_cert_reqs=server.ssl_cert_reqs,
        shutdown_timeout=server.shutdown_timeout,
        files_dir=None if server.files_dir is None else str(server.files_dir),
        max_file_bytes=server.max_file_size << 20,
        files_quota_bytes=server.files_quota << 20,
        batch_concurrency=server.batch_concurrency,
        log_level=server.log_level,
        log_requests=server.log_requests,
        deployment=server.config,
    )
    if not (config.api_keys or in_file) and not is_loopback(config.host):
        note(
            f"--host {config.host or repr('')}: everyone who can reach this machine may use the server; "
            f"--api-key-file or {KEY_VARIABLE} lets in only those who have a key."
        )
    what = config.engine.name or config.engine.model or "the demo model"
    if models is not None:
        what = ", ".join(model.names[0] for model in models) or "routes"
    with loading(what, always=True) as shown:
        from tokentrail.server import serve as run_server

        run_server(config, on_ready=shown.close, progress=shown.progress, served=served)


def register(app: typer.Typer) -> None:
    app.command(cls=ServeCommand)(serve)
