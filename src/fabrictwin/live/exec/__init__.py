"""Starting programs on hosts of the twin: which ones, whether a preload reaches them, in what environment."""
