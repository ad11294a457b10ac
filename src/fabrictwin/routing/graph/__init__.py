"""The switch graph that routing engines work on, and what is recognised in it."""
