"""The page and its HTTP interface: requests checked, work in processes of their own, answers within bounds."""
