"""Speed: long-short attention against full attention, timed side by side."""
