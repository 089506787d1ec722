"""The server's settings, as `tokentrail serve` passes them on. Names and meanings follow vLLM's flags."""

from __future__ import annotations

import ipaddress

import msgspec

from tokentrail.engine.config import EngineConfig


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that the server runs itself."""

    names: tuple[str, ...] = ()
    """Names it answers to, the first being its main one; none: the name in its checkpoint."""
    engine: EngineConfig
    cores: tuple[tuple[int, ...], ...] = ()
    """CPUs of each of its replicas; none: one engine process, on whatever cores there are."""
    chat_template: str | None = None
    generation_config: str = "auto"
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    pooling: str | None = None


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `serve` needs."""

    engine: EngineConfig = EngineConfig()
    models: tuple[ServedModel, ...] | None = None
    """Models of the deployment file that run here. None: it lists no models, and there is one, which `engine`,
    `served_model_names` and so on describe."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0: a free port, told in the log."""
    served_model_names: tuple[str, ...] = ()
    """Names the model answers to, the first being its main one; empty: the name in the checkpoint."""
    api_keys: tuple[str, ...] = ()
    """Bearer keys; empty: anybody may ask. /health and /metrics never need one."""
    key_hint: str = "YOUR_KEY"
    """What the command to try, printed at the start, has in a key's place. Never a key: terminals are filmed."""
    chat_template: str | None = None
    """Path of a Jinja template that replaces the checkpoint's."""
    trust_request_chat_template: bool = False
    """Requests may bring a chat template of their own."""
    tool_call_parser: str | None = None
    """How the model writes tool calls; None: as its chat template tells it to."""
    reasoning_parser: str | None = None
    """How the model marks its thoughts; None: as its chat template has them."""
    pooling: str | None = None
    """How embeddings are pooled (last, mean or cls); None: as the checkpoint says, otherwise last."""
    generation_config: str = "auto"
    """Where defaults of sampling parameters come from: auto (the model), vllm (nowhere), or a folder."""
    deployment: str | None = None
    """Path of a deployment file; see `gateway.config`."""
    trail_text: bool = False
    """Keep texts, token ids and alternatives in journeys. Without it they hold times and counts only."""
    trail_size: int = 1000
    """Finished journeys kept."""
    responses_store: int = 0
    """Responses of the Responses API that are kept for each key, prompts and answers included; 0: none."""
    ui: bool = True
    """Serve the page at `/`."""
    ollama_api: bool = True
    """Speak Ollama's API too."""
    llama_cpp_api: bool = True
    """And that of llama.cpp's server …"""
    tgi_api: bool = True
    """… and of Hugging Face's Text Generation Inference."""
    allowed_origins: tuple[str, ...] = ()
    """Origins that browsers may call from (CORS); empty: none, `*`: any."""
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    allowed_hosts: tuple[str, ...] = ()
    """Names in the `Host` header that are answered for; empty: see `server.hosts`."""
    max_body_bytes: int = 16 * 1024 * 1024
    """Larger request bodies get 413."""
    files_dir: str | None = None
    """Folder of uploaded files and batches; None: there are none."""
    max_file_bytes: int = 200 * 1024 * 1024
    """Larger uploads get 413."""
    files_quota_bytes: int = 10 * 1024 * 1024 * 1024
    """Of the files of one key together, results of batches included; more uploads get 413."""
    batch_concurrency: int = 8
    """Requests of batches that run at a time."""
    max_connections: int | None = None
    """Open connections at most. Beyond them those that rest are closed, the longest first, and where none rests, new
    ones are refused with 503. None: what the limit on open files leaves room for."""
    request_timeout: float | None = None
    """Seconds from a request's arrival to the end of its answer; then it ends with an error. None: any time."""
    ssl_keyfile: str | None = None
    """Path of the TLS certificate's key, in PEM; None: it is in `ssl_certfile`."""
    ssl_certfile: str | None = None
    """Path of the TLS certificate with its chain, in PEM; None: plain HTTP."""
    ssl_ca_certs: str | None = None
    """Path of the certificates that clients' own must be signed with."""
    ssl_cert_reqs: int = 0
    """Whether clients need a certificate: 0 (no), 1 (it is checked if there is one) or 2 (yes)."""
    shutdown_timeout: float = 30.0
    """Seconds that running requests get to finish after SIGTERM."""
    send_timeout: float = 60.0
    """Seconds a client may leave sent text unread before its request is ended and its blocks are freed."""
    log_level: str = "info"
    log_requests: bool = True
    """One line per answered request (never its text)."""

    def __repr__(self) -> str:
        """Without keys: it may end up in a log."""
        fields = (
            f"{name}={len(self.api_keys)} keys" if name == "api_keys" else f"{name}={getattr(self, name)!r}"
            for name in self.__struct_fields__
        )
        return f"ServerConfig({', '.join(fields)})"

    @property
    def wants_tls(self) -> bool:
        """Some flag of TLS was given."""
        return bool(self.ssl_certfile or self.ssl_keyfile or self.ssl_ca_certs or self.ssl_cert_reqs)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server at `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
