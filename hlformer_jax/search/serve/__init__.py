"""The search page and its server, and a server for AI agents.

server       its addresses, and `serve`
guard        access control: hosts, origins, tokens, errors
jobs         changes of the index by the page: index, add, remove, retry
files        files of videos by their ids
schemas      JSON responses and their schemas
redaction    lines without paths of this machine
mcp          tools for agents that speak the Model Context Protocol
static       the page: index.html, page.css, page.js, manage.js, texts.js
"""
