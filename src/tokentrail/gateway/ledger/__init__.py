"""Every request's metadata, written down so that no crash loses or doubles what is billed; never its text."""
