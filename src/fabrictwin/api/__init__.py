"""The Python face: what `import fabrictwin as ft` offers, and what the commands call."""
