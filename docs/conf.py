"""The site: these pages and a reference made from docstrings. `make docs` builds it, offline."""

from fabrictwin.base.version import __version__

project = "fabrictwin"
author = "the fabrictwin developers"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "schema"]
html_theme = "furo"
html_title = f"fabrictwin {__version__}"
html_show_sourcelink = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
# pages link to files of the repository (examples, validation), which are no pages of the site
suppress_warnings = ["myst.xref_missing", "misc.highlighting_failure"]

autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
add_module_names = False
