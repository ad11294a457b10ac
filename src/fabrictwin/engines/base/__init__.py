"""One interface for all engines: programs and single messages in, completions out."""
