"""The page at `/`: chat, journeys, what happens now, and how a token is drawn, shown in a browser.

The page is the files in `static/`, served as they are written; it is a client of the public API alone. `Page` serves
them, with headers that let the browser load and run nothing else.
"""

from tokentrail.server.ui.page import CONTENT_SECURITY_POLICY, Page

__all__ = ["CONTENT_SECURITY_POLICY", "Page"]
