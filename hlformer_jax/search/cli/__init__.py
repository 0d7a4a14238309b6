"""The commands of the search tool."""
