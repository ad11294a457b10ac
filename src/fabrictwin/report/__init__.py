"""What a run yields, and every view of it: figures, tables, timelines, pages."""
