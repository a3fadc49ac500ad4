"""Numbers as the tables print them."""


def format_amount(value: float, unit: str = "") -> str:
    """A number with three figures and a decimal prefix.

    >>> format_amount(1234567), format_amount(999, "B"), format_amount(3.82e12), format_amount(9.996e5)
    ('1.23 M', '999 B', '3.82 T', '1 M')
    """
    for letter in ("", "k", "M", "G", "T"):
        if float(f"{value:.3g}") < 1000 or letter == "T":
            break
        value /= 1000
    return f"{value:.3g} {letter}{unit}".strip()


def format_milliseconds(seconds: float) -> str:
    """Seconds as milliseconds, with one decimal below 100 ms.

    >>> format_milliseconds(0.00123), format_milliseconds(1.5)
    ('1.2', '1,500')
    """
    return f"{1000 * seconds:,.1f}" if seconds < 0.1 else f"{1000 * seconds:,.0f}"


def format_short_milliseconds(seconds: float) -> str:
    """Seconds as milliseconds with three figures, also below 1 ms.

    >>> format_short_milliseconds(0.0001234), format_short_milliseconds(0.01), format_short_milliseconds(1.23456)
    ('0.123', '10.0', '1,235')
    """
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.3g}"


def format_kl(nats: float) -> str:
    """A divergence with two figures; 0 only where there is none.

    >>> format_kl(0.12345), format_kl(0.0), format_kl(0.0000123)
    ('0.12', '0', '1.2e-05')
    """
    return f"{nats:.2g}"
