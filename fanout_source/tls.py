"""TLS as a client sees it: whom to trust, and who we are."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass

from .errors import OptionError


@dataclass(frozen=True)
class Tls:
    """`ca_file` is trusted instead of the system's authorities; `cert_file`, with its key, is what
    we show. Only the names are kept: files that change are read at the next connection."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """`OptionError` names a file that cannot be used."""
        try:
            context = ssl.create_default_context(cafile=_expanded(self.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise OptionError(f"option tls.caFile={self.ca_file}: {_reason(error)}") from None
        context.check_hostname = self.verify_hostname
        if self.cert_file is not None:
            try:
                # No question on a terminal for the password of a key.
                context.load_cert_chain(
                    os.path.expanduser(self.cert_file), _expanded(self.key_file), password=""
                )
            except (OSError, ssl.SSLError, ValueError) as error:
                files = f"tls.certFile={self.cert_file}"
                if self.key_file is not None:
                    files += f", tls.keyFile={self.key_file}"
                raise OptionError(f"option {files}: {_reason(error)}") from None
        return context


def _expanded(path: str | None) -> str | None:
    return None if path is None else os.path.expanduser(path)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key is not that of the certificate"
        return "not a certificate (or key, without a password) in PEM format"
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    return str(error)
