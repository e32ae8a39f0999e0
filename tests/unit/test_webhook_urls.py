"""Which URLs and addresses webhooks may have: every trick to reach a private host from inside is refused."""

import pytest

from codeq.domain.errors import InvalidRequest, WebhookRefused
from codeq.domain.webhooks import AllowList, WebhookRules, parse_url, read_allow_list

RULES = WebhookRules()


def lines(text: str) -> list[str]:
    return text.split()


PRIVATE = lines("""
http://127.0.0.1/
http://127.0.0.1:8080/v1/codeq/tasks
https://127.255.255.254/
http://0.0.0.0/
http://0.1.2.3/
http://10.0.0.1/
http://10.255.255.255/
http://100.64.0.1/
http://100.100.100.200/latest/meta-data/
http://100.127.255.255/
http://168.63.129.16/machine?comp=goalstate
http://169.254.169.254/latest/meta-data/iam/
http://169.254.170.2/v2/credentials
http://172.16.0.1/
http://172.31.255.255/
http://192.0.0.192/opc/v2/
http://192.0.2.1/
http://192.88.99.1/
http://192.168.1.1/
http://198.18.0.1/
http://198.19.255.255/
http://198.51.100.7/
http://203.0.113.7/
http://224.0.0.1/
http://239.255.255.250:1900/
http://240.0.0.1/
http://255.255.255.255/
http://127.0.0.1./
http://[::]/
http://[::1]/
http://[0:0:0:0:0:0:0:1]/
http://[::127.0.0.1]/
http://[::ffff:127.0.0.1]/
http://[::ffff:7f00:1]/
http://[::ffff:10.0.0.1]/
http://[::ffff:8.8.8.8]/
http://[64:ff9b::7f00:1]/
http://[64:ff9b::8.8.8.8]/
http://[64:ff9b:1::a00:1]/
http://[100::1]/
http://[2001::1]/
http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/
http://[2001:db8::1]/
http://[2002:7f00:1::]/
http://[2002:a00:1::1]/
http://[3fff::1]/
http://[5f00::1]/
http://[fc00::1]/
http://[fd00:ec2::254]/latest/meta-data/
http://[fe80::1]/
http://[fec0::1]/
http://[ff02::1]/
http://[4000::1]/
http://localhost/
http://LOCALHOST:6379/
http://localhost./
http://a.b.localhost/
http://printer.local/
http://metadata.google.internal/computeMetadata/v1/
http://router.home.arpa/
""")

ODD = lines("""
http://127.1/
http://127.0.1/
http://2130706433/
http://0x7f000001/
http://0x7f.0.0.1/
http://0177.0.0.1/
http://127.0.0.01/
http://0/
http://0x/
http://1.2.3.4.5/
http://256.1.1.1/
http://example.com.0x7f/
""")
"""Numbers that some take for addresses, and others for names."""

UNUSABLE = [
    *lines("""
http://user@example.com/
http://user:password@example.com/
http://example.com@127.0.0.1/
http://127.0.0.1#@example.com/
http://127.0.0.1\\@example.com/
http://example.com\\.evil/
http://[fe80::1%25eth0]/
http://[::1
http://[::1]x/
http://[v1.x]/
http://exam%70le.com/
http://%31%32%37.0.0.1/
http://①②⑦.⓪.⓪.①/
http://\uff11\uff12\uff17.0.0.1/\n
http://127。0。0。1/
http://例え.jp/
http://ex*mple.com/
http://a..b/
http://.example.com/
http://example.com:0/
http://example.com:65536/
http://example.com:8a/
http://example.com:/
http:///path
http://
http:/example.com/
http:example.com
//example.com/
example.com
ftp://example.com/
file:///etc/passwd
gopher://example.com:6379/_FLUSHALL
javascript:alert(1)
data:,x
unix:///run/docker.sock
"""),
    "http://exam ple.com/",
    "http://example.com/a b",
    "http://example.com/\r\nX: y",
    "http://example.com/\x00",
    "http://exa\tmple.com/",
    " http://example.com/",
    f"http://{'a' * 64}.com/",
    f"http://{'a.' * 127}com/",
    "http://example.com/" + "a" * 2000,
    "",
]

PUBLIC = lines("""
https://example.com/done
HTTPS://Example.COM:8443/done?x=1
http://example.com
http://example.com?x=/../
https://hooks.example.com./a
https://xn--r8jz45g.jp/
https://a_b.example.com/
http://8.8.8.8/
http://8.8.8.8:65535/
http://9.255.255.255/
http://11.0.0.1/
http://100.63.255.255/
http://100.128.0.1/
http://168.63.129.17/
http://169.253.255.255/
http://172.15.255.255/
http://172.32.0.1/
http://192.167.255.255/
http://223.255.255.255/
http://[2606:4700:4700::1111]/
http://[2a00:1450:4001:81b::200e]:8080/
http://127.0.0.1.nip.io/
http://local.example/
http://notlocalhost/
https://example.com/#fragment
""")


def test_the_table_is_long() -> None:
    assert len({*PRIVATE, *ODD, *UNUSABLE, *PUBLIC}) == len([*PRIVATE, *ODD, *UNUSABLE, *PUBLIC]) > 120


@pytest.mark.parametrize("url", [*PRIVATE, *ODD])
def test_check_58_a_private_or_odd_host_is_refused_without_a_look_up(url: str) -> None:
    with pytest.raises(WebhookRefused):
        RULES.check(url)


@pytest.mark.parametrize("url", UNUSABLE)
def test_check_56_a_url_that_parsers_read_differently_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        RULES.check(url)
    # A fragment cannot hide the host: what stands before it is checked.
    assert url == "http://127.0.0.1#@example.com/" or not isinstance(refusal.value, WebhookRefused)


@pytest.mark.parametrize("url", PUBLIC)
def test_a_public_host_is_allowed(url: str) -> None:
    RULES.check(url)


@pytest.mark.parametrize("url", PRIVATE)
def test_a_name_that_resolves_to_a_private_address_is_refused(url: str) -> None:
    address = parse_url(url).address
    if address is not None:
        with pytest.raises(WebhookRefused) as refusal:
            RULES.check_address(parse_url("http://a.example/"), address)
        assert address not in str(refusal.value), "what a name means inside is not for tenants to know"


@pytest.mark.parametrize("found", ["fe80::1%eth0", "2606:4700::1%eth0", "nonsense", "", "127.1"])
def test_check_59_an_address_in_a_strange_form_is_refused(found: str) -> None:
    with pytest.raises(WebhookRefused):
        RULES.check_address(parse_url("http://a.example/"), found)


def test_a_url_is_taken_apart_once() -> None:
    url = parse_url("HTTPS://Hooks.Example.com.:8443/a?b=c#d")
    assert (url.scheme, url.host, url.port, url.target) == ("https", "hooks.example.com", 8443, "/a?b=c")
    assert url.origin == "https://hooks.example.com:8443"
    assert parse_url("http://[::1]:80").origin == "http://[::1]"


def test_what_is_allowed_by_the_operator_is_allowed_and_nothing_else() -> None:
    rules = WebhookRules(read_allow_list("127.0.0.1, 10.1.0.0/16, fd00::/8, hooks.internal, *.svc.cluster.local"))
    for url in (
        "http://127.0.0.1:9000/", "http://10.1.255.1/", "http://[fd00::1]/",
        "http://HOOKS.internal./", "http://a.svc.cluster.local/", "http://8.8.8.8/",
    ):  # fmt: skip
        rules.check(url)
    for url in (
        "http://127.0.0.2/", "http://10.2.0.1/", "http://[::ffff:127.0.0.1]/", "http://[fe80::1]/",
        "http://x.hooks.internal/", "http://svc.cluster.local/", "http://localhost/",
    ):  # fmt: skip
        with pytest.raises(WebhookRefused):
            rules.check(url)
    rules.check_address(parse_url("http://hooks.internal/"), "10.9.9.9")
    with pytest.raises(WebhookRefused):
        rules.check_address(parse_url("http://hooks.example/"), "10.9.9.9")


@pytest.mark.parametrize("text", ["10.0.0.1/8", "300.1.1.1", "http://a/", "a b", "*", "*.", "::g", "a..b"])
def test_an_allow_list_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_allow_list(text)


def test_nothing_is_allowed_by_default() -> None:
    assert read_allow_list(" , ") == AllowList() == RULES.allow


def test_check_56_https_can_be_required() -> None:
    rules = WebhookRules(https_only=True)
    rules.check("https://example.com/")
    with pytest.raises(WebhookRefused):
        rules.check("http://example.com/")
