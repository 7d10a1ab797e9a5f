"""IPv4 subnets in plain Spark SQL.

An address is a dotted quad such as 92.126.10.7, as Python's `ipaddress` takes it; any other text lies in no
subnet. IPv6 is refused, not misread.
"""

from __future__ import annotations

import ipaddress

from flyball.errors import InvalidValue

_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
# \\z and not $, which in Java also stands before a line break at the end
ADDRESS = rf"\\A{_OCTET}[.]{_OCTET}[.]{_OCTET}[.]{_OCTET}\\z"
"""A regular expression that addresses match, as it is written between the quotes of a SQL text."""


def network(text: str) -> ipaddress.IPv4Network:
    """The subnet that `text` names.

    >>> network("92.126.10.0/24").prefixlen
    24
    >>> network("92.126.10.7/24")
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: '92.126.10.7/24' has bits set outside its prefix; did you mean '92.126.10.0/24'?
    """
    try:
        return ipaddress.IPv4Network(text)
    except ValueError:
        pass
    try:
        meant = ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        raise InvalidValue(
            f"{text!r} is not an IPv4 subnet; write an address and a prefix length, such as '92.126.10.0/24'"
        ) from None
    raise InvalidValue(f"{text!r} has bits set outside its prefix; did you mean '{meant}'?")


def in_subnet(address: str, subnet: ipaddress.IPv4Network) -> str:
    """A SQL condition: whether the SQL text expression `address` lies in `subnet`.

    Whole octets of the prefix are compared as text, which is cheap and rules most events out; then a divided
    octet as a range, and last whether it is an address at all.

    >>> in_subnet("ip", network("10.0.0.0/8")).split(" AND ")[0]
    "(startswith(ip, '10.')"
    """
    if subnet.prefixlen == subnet.max_prefixlen:  # a single address: its text is only the start of others
        return f"({address} = '{subnet.network_address}')"
    whole, bits = divmod(subnet.prefixlen, 8)
    octets = str(subnet.network_address).split(".")
    tests = []
    if whole:
        tests.append(f"startswith({address}, '{'.'.join(octets[:whole])}.')")
    if bits:
        low = int(octets[whole])
        high = low + 2 ** (8 - bits) - 1
        tests.append(f"try_cast(split_part({address}, '.', {whole + 1}) AS INT) BETWEEN {low} AND {high}")
    tests.append(f"{address} RLIKE '{ADDRESS}'")
    return f"({' AND '.join(tests)})"


def as_number(address: str) -> str:
    """A SQL expression: the address as a number from 0 to 2³²−1, null where it is none.

    >>> as_number("ip").startswith("CASE WHEN ip RLIKE")
    True
    """
    parts = [f"CAST(split_part({address}, '.', {i + 1}) AS BIGINT) * {256 ** (3 - i)}" for i in range(4)]
    return f"CASE WHEN {address} RLIKE '{ADDRESS}' THEN {' + '.join(parts)} END"
