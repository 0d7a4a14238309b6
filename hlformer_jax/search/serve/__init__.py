"""The search page and its server, and a server for AI agents.

server       `serve`, which listens on an address and runs the application
app          the application: the addresses of the page and the HTTP API
guard        access control: hosts, origins, tokens, errors
jobs         changes of the index that the page starts: index, add, remove, retry
files        opening and sending the files of videos, which requests name by their ids
schemas      JSON responses and their schemas
refusals     errors of requests, each with a code that the page translates
redaction    removal of this machine's paths from messages
mcp          tools for agents that speak the Model Context Protocol
static       the page: index.html, page.css, page.js, manage.js, texts.js
"""
