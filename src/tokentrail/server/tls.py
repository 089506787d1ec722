"""TLS: from key and certificate files to a context, or one line that says what is wrong with them."""

from __future__ import annotations

import ssl
from pathlib import Path

from tokentrail.protocol import InvalidRequest
from tokentrail.server.config import ServerConfig


def server_context(config: ServerConfig) -> ssl.SSLContext | None:
    """None: plain HTTP. Raises `InvalidRequest` that names the flag and the file at fault."""
    certificate, key = config.ssl_certfile, config.ssl_keyfile
    if certificate is None:
        for flag, value in (("--ssl-keyfile", key), ("--ssl-ca-certs", config.ssl_ca_certs)):
            if value is not None:
                raise InvalidRequest(f"{flag} needs --ssl-certfile, the certificate to serve with.")
        if config.ssl_cert_reqs:
            raise InvalidRequest("--ssl-cert-reqs needs --ssl-certfile, the certificate to serve with.")
        return None
    if b"-----BEGIN CERTIFICATE-----" not in _read("--ssl-certfile", certificate):
        raise InvalidRequest(f"--ssl-certfile {certificate}: there is no certificate in PEM in this file.")
    key_flag = f"--ssl-certfile {certificate}" if key is None else f"--ssl-keyfile {key}"
    if b"PRIVATE KEY-----" not in _read(*key_flag.split(" ", 1)):
        also = "" if key else "; name the file that holds it with --ssl-keyfile"
        raise InvalidRequest(f"{key_flag}: there is no private key in PEM in this file{also}.")

    def locked() -> str:
        raise InvalidRequest(
            f"{key_flag}: the key is encrypted. Write it without its password: "
            f"openssl pkey -in {key or certificate} -out server.key"
        )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, locked)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            message = f"{key_flag}: this is not the key of the certificate in {certificate}."
        else:
            message = f"{key_flag}: key or certificate cannot be read ({error.reason or error})."
        raise InvalidRequest(message) from None
    if config.ssl_ca_certs is not None:
        _read("--ssl-ca-certs", config.ssl_ca_certs)
        try:
            context.load_verify_locations(config.ssl_ca_certs)
        except ssl.SSLError:
            raise InvalidRequest(
                f"--ssl-ca-certs {config.ssl_ca_certs}: there is no certificate in PEM in this file."
            ) from None
    elif config.ssl_cert_reqs:
        raise InvalidRequest("--ssl-cert-reqs needs --ssl-ca-certs, the certificates to check clients' with.")
    context.verify_mode = ssl.VerifyMode(config.ssl_cert_reqs)
    return context


def _read(flag: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{flag} {path}: {error.strerror or error}.") from None
