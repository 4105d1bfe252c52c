"""Values that only decode with the schema they were written with, over any transport."""
