"""Links as the catalog has them: those inside a host, and those between hosts."""
