"""A certificate of one's own, made by openssl."""

import shutil
import subprocess
from pathlib import Path

import pytest

LIMIT_S = 20


def made(folder: Path, names: str) -> tuple[Path, Path]:
    """Certificate and key of a server with these names; the certificate is also the one to trust."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    folder.mkdir(exist_ok=True)
    cert, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", "/CN=splitcore", "-addext", f"subjectAltName={names}"]
    server = ["-addext", "basicConstraints=critical,CA:FALSE"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command = [openssl, "req", "-x509", *curve, "-keyout", key, "-out", cert, "-days", "2", *subject, *server]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    return cert, key
