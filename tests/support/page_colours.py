"""Colours that a canvas of a page shows."""

from __future__ import annotations

# JavaScript: the number of opaque colours on the canvas of an id
COLOURS = """(id) => {
  const c = document.getElementById(id), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
  const seen = new Set();
  for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) seen.add([d[i], d[i + 1], d[i + 2]].join());
  return seen.size;
}"""
