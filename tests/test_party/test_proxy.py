"""What the environment names as a proxy: what cannot be one is refused before anything is sent."""

from __future__ import annotations

import httpx
import pytest

from party.errors import JoinError
from party.site.proxy import Proxy, proxy_to

COORDINATOR = "coordinator.example.org"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("http://proxy.example.org:3128", "proxy.example.org:3128"),
        ("proxy.example.org:3128", "proxy.example.org:3128"),
        ("http://proxy", "proxy:8080"),
        ("http://PROXY_1:1/", "proxy_1:1"),
        ("http://192.0.2.7:1", "192.0.2.7:1"),
        ("http://[2001:db8::7]:1", "[2001:db8::7]:1"),
        ("http://us:p%40ss@proxy:1", "proxy:1"),
    ],
)
def test_a_proxy_is_found_and_can_be_used(text: str, place: str) -> None:
    proxy = proxy_to(COORDINATOR, {"HTTPS_PROXY": text})
    assert proxy is not None
    assert proxy.place == place
    assert httpx.Proxy(f"http://{proxy.place}").url.host
    assert "p@ss" not in repr(proxy)
    assert proxy.login == (("us", "p@ss") if "@" in text else None)


@pytest.mark.parametrize(
    "text",
    [
        "socks5://proxy:1",
        "https://proxy:1",
        "ftp://proxy:1",
        "http://",
        "http://:1",
        "http://proxy:0",
        "http://proxy:99999",
        "http://proxy:one",
        "http://a b:1",
        "http://a..b:1",
        "http://" + "a" * 64,
        "http://" + "a." * 127 + "aa",
        "http://h\u00f6st:1",
        "http://a%20b:1",
        "http://192.0.2.999:1",
        "http://[2001:db8::g]:1",
        "http://-a:1",
    ],
)
def test_what_can_be_none_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(JoinError) as caught:
        proxy_to(COORDINATOR, {"ALL_PROXY": text})
    assert caught.value.must.startswith("ALL_PROXY ")
    assert caught.value.got == ""


@pytest.mark.parametrize(
    ("environment", "variable"),
    [
        ({}, None),
        ({"HTTP_PROXY": "http://a:1"}, None),
        ({"HTTPS_PROXY": ""}, None),
        ({"HTTPS_PROXY": "http://a:1", "https_proxy": "http://b:1"}, "https_proxy"),
        ({"ALL_PROXY": "http://a:1", "HTTPS_PROXY": "http://b:1"}, "HTTPS_PROXY"),
        ({"ALL_PROXY": "http://a:1"}, "ALL_PROXY"),
        ({"ALL_PROXY": "http://a:1", "NO_PROXY": "example.org"}, None),
        ({"ALL_PROXY": "socks5://a:1", "no_proxy": "*"}, None),
        ({"ALL_PROXY": "http://a:1", "NO_PROXY": "example.com"}, "ALL_PROXY"),
    ],
)
def test_of_several_variables_one_counts(environment: dict[str, str], variable: str | None) -> None:
    proxy = proxy_to(COORDINATOR, environment)
    assert (proxy.variable if isinstance(proxy, Proxy) else None) == variable
