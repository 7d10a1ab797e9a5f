"""Certificates for tests of brokers."""

from __future__ import annotations

import pytest
import trustme

from flyball.servers.rabbitmq import TlsFiles


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    files = TlsFiles(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    authority.cert_pem.write_to_path(files.authority)
    certificate.private_key_pem.write_to_path(files.key)
    for part in certificate.cert_chain_pems:
        part.write_to_path(files.certificate, append=True)
    return files
