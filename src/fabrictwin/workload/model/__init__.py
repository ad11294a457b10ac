"""Models by their sizes, read from Hugging Face configurations."""
