"""The subnet manager: finds the fabric by datagrams, gives it LIDs and tables, keeps it up, answers queries."""
