"""Tables judged, compared, read and written."""
