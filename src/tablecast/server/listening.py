"""Where the server listens: a socket bound before the database is opened, and TLS.

What is wrong with an address or a certificate is said before anything is touched. The socket is bound early and listens
late: a port in use is noticed at once, and nobody connects to a server that is still recovering.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl

from tablecast.errors import InvalidRequest
from tablecast.server.settings import Settings

_Resolved = tuple[socket.AddressFamily, str]


def bind(settings: Settings) -> socket.socket:
    """A socket bound to the settings' address. Refuses one that others can reach when there is no TLS."""
    family, address = _resolve(settings.host)
    _check_reach(settings, address)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # "::" means IPv4 as well
        listener.bind((address, settings.port))
    except OSError as error:
        listener.close()
        raise InvalidRequest(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; choose another port "
            "(0 takes any that is free) or end what listens there",
            host=settings.host,
            port=settings.port,
        ) from error
    return listener


def _resolve(host: str) -> _Resolved:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(f"host {host!r} is no address of this machine: {error}", host=host) from error
    resolved = [(family, str(address[0])) for family, _, _, _, address in found]
    return min(resolved, key=lambda entry: entry[0] is not socket.AF_INET)  # "localhost" is both: IPv4 is expected


def _check_reach(settings: Settings, address: str) -> None:
    if settings.tls_certificate or settings.insecure_network:
        return
    if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        raise InvalidRequest(
            f"host {settings.host} can be reached from other machines, and without TLS passwords would travel readable: "
            "set tls_certificate and tls_key, or insecure_network if something else protects the network",
            host=settings.host,
        )


def url(listener: socket.socket, settings: Settings) -> str:
    address, port = listener.getsockname()[:2]
    scheme = "https" if settings.tls_certificate else "http"
    return f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """None without TLS. TLS 1.2 is the oldest that is spoken, as Python has it by default."""
    if not settings.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name, path in (("tls_certificate", settings.tls_certificate), ("tls_key", settings.tls_key)):
        _check_readable(name, path)
    try:
        # Nobody is there to type a passphrase: an encrypted key is refused instead of asked for.
        context.load_cert_chain(settings.tls_certificate, settings.tls_key, password=b"")
    except (ssl.SSLError, ValueError) as error:
        raise InvalidRequest(
            f"{settings.tls_certificate} and {settings.tls_key} are no certificate with its unencrypted key, "
            f"both PEM: {error}",
            setting="tls_certificate",
        ) from error
    return context


def _check_readable(setting: str, path: str) -> None:
    try:
        with open(path, "rb"):  # noqa: PTH123 - only whether it can be
            pass
    except OSError as error:
        raise InvalidRequest(f"{setting} {path} cannot be read: {error.strerror}", setting=setting) from error
