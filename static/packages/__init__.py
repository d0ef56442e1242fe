"""Packages of npm that the page loads when it needs them: pinned here, fetched when Eagre is built."""
