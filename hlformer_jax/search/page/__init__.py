"""The page with which a person searches, sees the moment and plays it, and the server behind it.

server      its addresses, and `serve`
guard       who may ask, and how the others are refused: hosts, origins, tokens, errors
answers     what the page is given: JSON, and files by their ids
description the forms of those, and the page /api/docs
index.html, page.css, page.js    the page, without a build and without anything from elsewhere
"""
