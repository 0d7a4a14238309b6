"""The page with which a person searches, sees the moment and plays it, and the server behind it.

server      its addresses, and `serve`
guard       who may ask, and how the others are refused: hosts, origins, tokens, errors
jobs        changes of the index by the page: index, add, remove, retry
files       files of videos by their ids
schemas     JSON and its forms, the page /api/docs
redaction   errors and warnings without paths of this machine
mcp         an archive for programs that speak MCP
index.html, page.css, page.js, manage.js    the page, without a build and anything from elsewhere
"""
