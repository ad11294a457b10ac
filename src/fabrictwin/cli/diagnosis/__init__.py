"""Commands of the doctor: diagnose, expect, collect."""
