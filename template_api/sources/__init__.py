"""Template folders, `.jsonl` files and lists of synonyms, read into checked values; without the database.

From the bottom: `members`, `template`, `reading`, `synonyms`.
"""
