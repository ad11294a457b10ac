"""Starting programs on hosts of the twin: which ones, whether a preloaded library reaches them, in what environment."""
