"""The only file that needs plotly: its script, which goes into the page."""

from __future__ import annotations

from fedfi.errors import InputError


def script() -> str:
    """Plotly's JavaScript, whole.

    Raises:
        InputError: If plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise InputError("reports need plotly: pip install 'fedfi[report]'") from error
    text: str = get_plotlyjs()
    return text
