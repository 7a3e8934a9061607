"""One module for each version of the tables, named by it; what was released is never edited."""
