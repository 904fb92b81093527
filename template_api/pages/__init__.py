"""The library's pages for people: rendered from the library, readable without JavaScript, better with it."""
