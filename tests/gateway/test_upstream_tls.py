"""Replicas behind TLS: verified by name and authority, or not spoken to."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from gateway.upstream import Upstream
from gateway.upstream_errors import ConnectFailed
from tests.support.fake_replica import FakeReplica, answers

REQUEST = b"POST /x HTTP/1.1\r\nhost: r\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    return cert, key


async def test_an_answer_over_tls(certificate: tuple[Path, Path]) -> None:
    """Whole bodies go both ways, and the connection is kept."""
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*certificate)
    trusted = ssl.create_default_context(cafile=str(certificate[0]))
    async with FakeReplica(answers(b"x" * 200_000), tls=served) as replica:
        upstream = Upstream(replica.url, connect_s=5, first_byte_s=5, gap_s=5, tls=trusted)
        for _ in range(2):
            exchange = upstream.exchange(REQUEST, b"")
            await exchange.send()
            assert (await exchange.head())[0] == 200
            body = b""
            while piece := await exchange.read():
                body += piece
            exchange.close()
            assert body == b"x" * 200_000
        assert replica.num_connections == 1
        upstream.close()


async def test_a_certificate_that_nobody_vouches_for(certificate: tuple[Path, Path]) -> None:
    """Nothing is sent to it."""
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*certificate)
    async with FakeReplica(answers(), tls=served) as replica:
        upstream = Upstream(replica.url, connect_s=5, first_byte_s=5, gap_s=5)
        with pytest.raises(ConnectFailed):
            await upstream.exchange(REQUEST, b"").send()
        assert replica.received == []
        assert upstream.num_open == 0
