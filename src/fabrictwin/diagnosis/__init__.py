"""Diagnosis: what a sick cluster printed, held against what the twin says that it should have printed.

Files become evidence (`readers/`), evidence and the twin's expectation (`expectation/`) become findings (`rules/`,
`hangs/`), findings become a report with root causes on top (`root_causes.py`), as text or a page.
"""
