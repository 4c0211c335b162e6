"""Whether the name or address of a machine is this machine's own (loopback)."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a name or an address is the machine's own."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
