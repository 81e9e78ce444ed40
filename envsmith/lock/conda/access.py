"""Opens an address of a channel as this user: proxies, certificates, credentials; the one place where a secret goes out."""

from __future__ import annotations

import functools
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envsmith.errors import UsageError
from envsmith.lock.conda.credentials import Logins, find_logins
from envsmith.lock.conda.settings import ChannelSettings, read_settings

__all__ = ["Access", "user_access"]


@dataclass(frozen=True, kw_only=True)
class Access:
    """What this user may see, and by which way."""

    settings: ChannelSettings = field(default_factory=ChannelSettings)
    logins: Logins = field(default_factory=Logins)

    def open(self, url: str, headers: Mapping[str, str], seconds: float) -> Any:
        """The answer to a GET; raises what urllib raises. A redirect is asked anew, with the credentials of where it leads."""
        return self._opener.open(self._request(url, headers), timeout=seconds)

    def told(self, url: str) -> str:
        """Which credentials were sent, for the message about a refused request."""
        login = self.logins.find(url)
        return f"credentials of {login.source} were sent" if login else "no credentials are known for it"

    def _request(self, url: str, headers: Mapping[str, str]) -> urllib.request.Request:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in {"http", "https"}:
            raise urllib.error.URLError("it leads to an address that is not http or https")
        login = self.logins.find(url)
        plain = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1]))
        request = urllib.request.Request(login.on(plain) if login else plain, headers=dict(headers))  # noqa: S310 - looked at above
        if login and login.header:
            request.add_unredirected_header("Authorization", login.header)
        return request

    @functools.cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        handlers: list[urllib.request.BaseHandler] = [
            _Redirect(self),
            urllib.request.HTTPSHandler(context=_context(self.settings)),
        ]
        if self.settings.proxies:
            handlers.append(_Proxies(self.settings))
        return urllib.request.build_opener(*handlers)


def user_access() -> Access:
    """As the configuration of this machine says; ``DataError`` for a file of it that does not parse."""
    settings = read_settings()
    return Access(settings=settings, logins=find_logins(settings.auth_file))


def _context(settings: ChannelSettings) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if settings.verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif isinstance(settings.verify, Path):
        try:
            where = "capath" if settings.verify.is_dir() else "cafile"
            context.load_verify_locations(**{where: str(settings.verify)})
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"ssl_verify names {settings.verify}, which holds no certificates") from error
    return context


class _Redirect(urllib.request.HTTPRedirectHandler):
    """Follows; what was meant for one server does not go to the next one, and nothing goes from https to http."""

    def __init__(self, access: Access) -> None:
        self.access = access

    def redirect_request(  # noqa: PLR0917 - urllib's signature
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if super().redirect_request(req, fp, code, msg, headers, newurl) is None:
            return None
        if req.type == "https" and urllib.parse.urlsplit(newurl).scheme == "http":
            raise urllib.error.URLError("it leads from https to http")
        made = self.access._request(newurl, req.headers)  # noqa: SLF001 - the other half of this class
        old, new = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        sent = req.get_header("Authorization")
        if sent and (old.scheme, old.netloc) == (new.scheme, new.netloc):
            made.add_unredirected_header("Authorization", sent)
        return made


class _Proxies(urllib.request.ProxyHandler):
    """The configured proxies, but for hosts that are to be reached without one."""

    def __init__(self, settings: ChannelSettings) -> None:
        super().__init__(dict(settings.proxies))
        self.direct = settings.no_proxy

    def proxy_open(self, req: urllib.request.Request, proxy: str, type: str) -> Any:  # noqa: A002 - urllib's name
        host = urllib.parse.urlsplit(req.full_url).hostname or ""
        if any(host == name or host.endswith("." + name.lstrip("*.")) for name in self.direct):
            return None
        return super().proxy_open(req, proxy, type)
