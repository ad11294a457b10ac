"""Who did what when: intervals, tracks, and timelines for pages and Perfetto."""
