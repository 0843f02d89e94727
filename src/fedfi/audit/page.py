"""An audit as a table and as a page with pictures."""

from __future__ import annotations

import base64
import html as escaping
import io
from collections.abc import Sequence

from torch import Tensor

from fedfi.audit.findings import Audit

COLUMNS = {
    "known/share": "parameters in the clear",
    "labels/masks": "label from masks",
    "labels/fisher": "label from Fisher scores",
    "labels/changes": "label from updates",
    "labels/chance": "label by chance",
    "membership/auc": "membership AUC",
    "inversion/psnr": "PSNR (dB)",
    "inversion/floor": "PSNR of noise (dB)",
    "inversion/ssim": "SSIM",
}


def rows(audits: Sequence[Audit]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table; columns that nothing is known of are left out."""
    columns = [c for c in COLUMNS if any(c in a.table for a in audits)]
    header = ["run", "method", *(COLUMNS[c] for c in columns)]
    return header, [[a.name, a.method, *(_shown(a.table.get(c)) for c in columns)] for a in audits]


def markdown(audits: Sequence[Audit]) -> str:
    """The table in Markdown."""
    header, lines = rows(audits)
    parts = ["| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *lines]]
    return "\n".join(parts) + "\n"


def html(audits: Sequence[Audit]) -> str:
    """The page."""
    header, lines = rows(audits)
    cells = "".join(f"<th>{escaping.escape(h)}</th>" for h in header)
    body = "".join("<tr>" + "".join(f"<td>{escaping.escape(c)}</td>" for c in line) + "</tr>" for line in lines)
    pictures = ""
    for a in audits:
        if a.pictures:
            pictures += f"<h2>{escaping.escape(a.name)} ({escaping.escape(a.method)})</h2><div class=row>"
            for caption, original, rebuilt in a.pictures:
                pictures += (
                    f"<figure><img alt=original src='{_png(original)}'><img alt=reconstruction src='{_png(rebuilt)}'>"
                    f"<figcaption>{escaping.escape(caption)}</figcaption></figure>"
                )
            pictures += "</div>"
    style = (
        "body{font:15px system-ui,sans-serif;margin:2rem;max-width:70rem}table{border-collapse:collapse}"
        "td,th{border:1px solid #ccc;padding:.3rem .6rem;text-align:right}figure{display:inline-block;margin:.5rem}"
        "img{width:112px;image-rendering:pixelated;margin-right:4px}figcaption{font-size:12px;color:#555}"
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>fedfi audit</title><style>{style}</style>"
        "<h1>What the server could learn</h1>"
        f"<table><tr>{cells}</tr>{body}</table>"
        "<p>Each picture: the client's example on the left, the attack's reconstruction on the right.</p>"
        f"{pictures}</html>\n"
    )


def pictures(audits: Sequence[Audit]) -> list[dict[str, str]]:
    """Each pair of pictures as data that a page can hold, with its run and caption."""
    return [
        {"name": a.name, "caption": caption, "original": _png(original), "reconstruction": _png(rebuilt)}
        for a in audits
        for caption, original, rebuilt in a.pictures
    ]


def _png(image: Tensor) -> str:
    from PIL import Image

    pixels = (image.clamp(0, 1) * 255).round().byte()
    array = pixels[0].numpy() if len(pixels) != 3 else pixels.permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
