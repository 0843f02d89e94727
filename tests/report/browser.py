"""What a browser is asked about a page: these run in it, and give what is wrong."""

from __future__ import annotations

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str | None:
    """The Chromium of this machine: what FEDFI_CHROMIUM names, or the first on the path."""
    return os.environ.get("FEDFI_CHROMIUM") or next((p for n in NAMES if (p := shutil.which(n))), None)


SETTLED = """() => [...document.querySelectorAll('[data-figure]')].every(place => {
  const svg = place.querySelector('.main-svg');
  return svg && Math.abs(svg.getBoundingClientRect().width - place.clientWidth) < 2;
})"""

MISPLACED = """() => {
  const found = [];
  const name = e => (e.getAttribute('class') || e.tagName) + ' ' + (e.textContent || '').slice(0, 40);
  const apart = elements => elements.forEach((a, i) => elements.slice(i + 1).forEach(b => {
    const p = a.getBoundingClientRect(), q = b.getBoundingClientRect();
    const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (wide > 1 && high > 1) found.push(`${name(a)} lies over ${name(b)}`);
  }));
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (wide > 0) found.push(`the page scrolls sideways by ${wide}`);
  apart([...document.querySelectorAll('h1, h2, nav, .verdict, dl, .grid, .scroll, details, section > p, .pairs')]
    .filter(e => !e.parentElement.closest('details')));
  apart([...document.querySelectorAll('dl > div')]);
  apart([...document.querySelectorAll('nav a')]);
  apart([...document.querySelectorAll('.figure')]);
  document.querySelectorAll('.figure').forEach(card => {
    apart(['figcaption', '.tools', '[data-figure]', '.note'].flatMap(s => [...card.querySelectorAll(s)]));
    apart(['.legend', '.g-xtitle', '.g-ytitle', '.cartesianlayer .plot', '.colorbar']
      .flatMap(s => [...card.querySelectorAll(s)]).filter(e => e.getBoundingClientRect().width));
    const frame = card.getBoundingClientRect();
    card.querySelectorAll('text').forEach(text => {
      const box = text.getBoundingClientRect();
      if (box.width && (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1))
        found.push(`${text.textContent} leaves ${card.querySelector('figcaption').textContent}`);
    });
  });
  return found;
}"""

PALE = """() => {
  const canvas = Object.assign(document.createElement('canvas'), { width: 1, height: 1 });
  const pen = canvas.getContext('2d', { willReadFrequently: true });
  const rgba = text => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = text;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data];
  };
  const light = c => [0, 1, 2].map(i => c[i] / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const behind = e => {
    for (let at = e; at; at = at.parentElement) {
      const back = rgba(getComputedStyle(at).backgroundColor);
      if (back[3] === 255) return back;
    }
    return [255, 255, 255, 255];
  };
  const found = new Set(), seen = { text: 0, lines: 0 };
  const check = (element, colour, least, what) => {
    const ratio = contrast(rgba(colour), behind(element));
    if (ratio < least) found.add(`${what}: ${colour} has ${ratio.toFixed(2)}, needs ${least}`);
  };
  document.querySelectorAll('details').forEach(part => { part.open = true; });
  const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || !element.getClientRects().length || element.closest('style, noscript')) continue;
    const style = getComputedStyle(element), svg = element.closest('svg');
    seen.text += 1;
    check(element, svg ? style.fill : style.color, 4.5, text.slice(0, 40));
  }
  document.querySelectorAll('.lines path.js-line').forEach(line => {
    const style = getComputedStyle(line);
    if (parseFloat(style.strokeWidth) === 0) return;
    seen.lines += 1;
    check(line, style.stroke, 3, 'a line');
  });
  return { found: [...found], seen };
}"""

REACHABLE = """() => [...document.querySelectorAll('a[href], button, summary, [tabindex="0"]')]
  .filter(e => e.getClientRects().length).length"""

FOCUSED = """() => {
  const e = document.activeElement, style = getComputedStyle(e);
  const name = e.getAttribute('aria-label') || e.textContent.trim();
  e.dataset.reached = '';
  return { name, outlined: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0 };
}"""

MISSED = """() => [...document.querySelectorAll('a[href], button, summary, [tabindex="0"]')]
  .filter(e => e.getClientRects().length && !('reached' in e.dataset))
  .map(e => e.getAttribute('aria-label') || e.textContent.trim())"""
