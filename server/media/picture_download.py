"""Downloads pictures from the hosts that the operator names."""

from __future__ import annotations

import socket
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

SECONDS = 10.0  # that a download may take
_NAT64 = IPv6Network("64:ff9b::/96")  # of RFC 6052; the last 32 bits are an IPv4 address
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")  # of RFC 8215, whose translators are a network's own
_IPV4_COMPATIBLE = IPv6Network("::/96")


class DownloadRefused(ValueError):
    """An address that may not be read, or a download that has failed; the message is the end of a sentence about it."""


async def download(url: str, allowed_hosts: Collection[str], most_bytes: int) -> bytes:
    """The bytes at an address of http or https; redirects are not followed. Raises DownloadRefused.

    A host that is allowed by its name must have public addresses alone, so that a name cannot lead to a service behind
    the server's firewall; one that is allowed as a literal address may have any.
    """
    try:
        host = (urlsplit(url).hostname or "").lower()
    except ValueError as error:
        raise DownloadRefused("has an invalid address") from error
    if host not in allowed_hosts:
        raise DownloadRefused(f"is at the host {host[:80]!r}, which --allowed-media-hosts does not name")
    connector = aiohttp.TCPConnector(resolver=_PublicResolver(), use_dns_cache=False)
    try:
        async with (
            aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=SECONDS), auto_decompress=False
            ) as session,
            session.get(url, allow_redirects=False, headers={"Accept": "image/*"}) as response,
        ):
            if response.status != 200:
                raise DownloadRefused(f"cannot be downloaded: its host answers with the status {response.status}")
            content = bytearray()
            async for chunk in response.content.iter_chunked(1 << 16):
                content += chunk
                if len(content) > most_bytes:
                    raise DownloadRefused(f"has more than {most_bytes} bytes, the limit")
            return bytes(content)
    except TimeoutError as error:
        raise DownloadRefused(f"was not downloaded within {SECONDS:g} s, the limit") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if isinstance(error, DownloadRefused):
            raise
        raise DownloadRefused("cannot be downloaded: its host does not answer") from error


class _PublicResolver(AbstractResolver):
    """Resolves names to public addresses; aiohttp does not ask it of literal ones."""

    def __init__(self) -> None:
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        results = await self._inner.resolve(host, port, family)
        if any(not is_public(result["host"]) for result in results):
            raise DownloadRefused("is at a host whose name leads to a private address")
        return results

    async def close(self) -> None:
        await self._inner.close()


def is_public(address: str) -> bool:
    """Whether an address is one of the Internet; one of IPv6 that leads to an address of IPv4 is as public as that."""
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address):
        if parsed.is_site_local or parsed in _LOCAL_NAT64 or parsed in _IPV4_COMPATIBLE:
            return False
        inner = parsed.ipv4_mapped or parsed.sixtofour
        if parsed in _NAT64:
            inner = IPv4Address(int(parsed) & 0xFFFF_FFFF)
        if inner is not None:
            parsed = inner
    return parsed.is_global and not parsed.is_multicast
